"""What to do about an event, each beside its subject.

Belongs here: functions that take a turn and an event, and the table that names one for each event.
"""
