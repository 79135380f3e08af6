"""Checkpoints looked at, exported, imported.

Belongs here: what `remesh checkpoint` does.
"""
