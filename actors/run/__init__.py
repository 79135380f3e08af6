"""A run as a folder and an address: who may write to it, what it says of itself.

Belongs here: files of a run besides its journals and checkpoints, how it is reached and told.
"""
