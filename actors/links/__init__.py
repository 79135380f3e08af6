"""The controller's side of the nodes: which there are, what they are told, what they say.

Nothing here decides: what is seen becomes an event, and what was decided becomes an order.
"""
