"""A clock, an inbox and a journal around the machine.

Belongs here: the controller's actor, how it starts, takes over, watches and carries out commands.
"""
