"""How fast a run goes, and how long it still takes at that pace."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

RECENT = 33  # ends of steps: 32 intervals


def pace_s(ends: Sequence[tuple[int, float]]) -> float | None:
    """Seconds from the end of a step to that of the next, at the median of the newest ones.

    Each of `ends` is a step and the moment of its end. The median is not moved by a recovery, nor
    by a save every now and then. None before the second step.
    """
    intervals = [
        after_s - before_s
        for (before, before_s), (after, after_s) in pairwise(ends[-RECENT:])
        if after == before + 1
    ]
    return max(0.0, median(intervals)) if intervals else None


def left_s(pace: float | None, *, step: int, steps: int) -> float | None:
    """Seconds to the last step, None where no pace is known."""
    return None if pace is None else pace * max(0, steps - step)
