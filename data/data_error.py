"""The one error of this layer."""


class DataError(Exception):
    """Data is bad, missing or changed. The message is the whole line for the user."""
