"""How one mesh ends and the next begins: whom to start, whom to take, when to leave.

Belongs here: what several handlers do, with the turn that they do it in.
"""
