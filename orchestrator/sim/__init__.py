"""A whole cluster in one thread from one seed.

Belongs here: simulated nodes, networks, processes and storage, what befalls them, and what must
hold after every event.
"""
