"""Errors that end a command with a line for the user and an exit code."""


class RemeshError(Exception):
    """Says what was seen, what was expected and what to do. `exit_code` is the command's."""

    exit_code = 3


class UserError(RemeshError):
    """The input is wrong; the same command cannot succeed before the user changes something."""

    exit_code = 2


class UnreachableError(RemeshError):
    """The cluster or the run cannot be reached."""

    exit_code = 4
