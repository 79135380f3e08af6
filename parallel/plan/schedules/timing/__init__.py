"""When each operation of a schedule would be carried out, and that as text.

Belongs here: time as numbers that a schedule is given, never a clock.
"""
