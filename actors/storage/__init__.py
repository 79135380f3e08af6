"""Places for checkpoints: a file system, an object store.

Belongs here: every `Storage`, with the deadlines, retries and counts around it.
"""
