"""Decides, and is pure: no clock, no I/O, no threads.

Time is an argument, chance does not happen, and nothing here waits. Of parallel and data it uses
their pure rooms and files only.
"""
