class InvariantError(AssertionError):
    """The controller, or the simulated cluster, did what must never happen."""
