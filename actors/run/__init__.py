"""A run as a folder, a journal, an address and numbers.

Belongs here: files of a run, its status over HTTP, its metrics.
"""
