"""Our checkpoints: fragments, resharding, files.

Belongs here: the format, its planning, its writing and its verified reading. Other people's formats
have a room of their own.
"""
