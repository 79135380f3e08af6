"""What the machine is told and what it decides, as values.

Belongs here: events, commands, records, options, the table of phases, pure functions of them, and
the codec that makes JSON of them all.
Nothing here remembers.
"""
