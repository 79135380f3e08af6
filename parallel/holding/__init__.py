"""What a rank holds of the state, and how it comes back.

Belongs here: the memory of shards, exchange among ranks, snapshots as a source, and which part of
a checkpoint a rank writes.
"""
