"""What the machine is told and what it decides, as values.

Belongs here: events, commands, records, options, the table of phases, and pure functions of them.
Nothing here remembers.
"""
