"""Losses as sums.

Belongs here: numbers whose kind and order matter, apart from any layer that uses them.
"""
