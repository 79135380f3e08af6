"""One training step: the engine and what it drives.

Belongs here: the interpreter of schedules, forward and backward by blocks, the vote and the norm.
"""
