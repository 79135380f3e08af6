"""What a run has done and where its time went: told, never asked for a decision.

Belongs here: views, ledgers and tallies that follow from events and memory. The machine does not
import this room.
"""
