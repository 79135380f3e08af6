"""All that the machine remembers.

Belongs here: what the journal rebuilds, each subject with its own rules of counting and forgetting.
Nothing here decides what to do.
"""
