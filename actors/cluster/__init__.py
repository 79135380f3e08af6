"""A Ray cluster: found, or started here and ended with the command.

Belongs here: connections, local nodes, their supervisor, and every private Ray call.
"""
