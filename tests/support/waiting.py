"""Waits that end a hang and say nothing about speed: no test fails because a machine is busy."""

import time

PATIENCE_S = 120.0
# For a time limit of the product that must not be what frees somebody.
NEVER_S = 100 * PATIENCE_S


def soon(condition, look_s=0.005):
    """What `condition` answers as soon as that is true, or its last answer after a long time.

    It is asked every `look_s`.
    """
    end_s = time.monotonic() + PATIENCE_S
    while not (found := condition()) and time.monotonic() < end_s:
        time.sleep(look_s)
    return found
