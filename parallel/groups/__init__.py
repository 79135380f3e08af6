"""Process groups that can be ended at any moment, and the mesh of them.

Belongs here: backends, rendezvous, stores, sockets, fences and collectives. No model, no state.
"""
