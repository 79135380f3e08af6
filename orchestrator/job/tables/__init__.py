"""The tables of the job file, each key with its kind, default and what it is for.

Belongs here: what can be said of one table by itself. Rules between tables are checks of the job.
"""
