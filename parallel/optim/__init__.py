"""Optimizers on flat shards, one a file, with rates and clipping.

Belongs here: how a gradient changes the state. Where either lies is not its business.
"""
