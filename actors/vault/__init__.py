"""One a node: owns the memory of snapshots.

Belongs here: slots in shared memory, whose they are, and how they are copied and read.
"""
