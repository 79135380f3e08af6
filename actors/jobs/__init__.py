"""Runs started, and jobs handed to a running cluster.

Belongs here: submission, the head's job server, logs, and a run as its command holds it.
"""
