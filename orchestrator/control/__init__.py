"""The machine: events in, commands out, one mutator.

Belongs here: `Controller`, and the journal that replays it. Its words, its memory and its handlers
have rooms of their own.
"""
