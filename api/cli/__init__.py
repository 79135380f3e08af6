"""The command line: one file a command.

Belongs here: options, progress, what is printed, exit codes. A command asks the layers below for
everything that is more than words, and decides nothing.
"""
