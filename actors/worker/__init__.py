"""One process, at most one rank: trains, saves, takes snapshots.

Belongs here: a rank's process, its trainer thread, and what goes on beside that thread.
"""
