"""One process, at most one rank: trains, saves, takes snapshots.

Belongs here: the worker's actor, its trainer thread, and what goes on beside that thread.
"""
