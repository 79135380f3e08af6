"""The job file: tables, their checks, what shapes the curve and the bits.

Belongs here: what a user asks for, checked once and then trusted, and what the command and the
cluster tell each other about it.
"""
