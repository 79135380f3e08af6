"""Time as a process lives through it, in which it never stands still."""

import time
from collections.abc import Callable

LATE = 3  # intervals: a look that comes later comes from a standstill


class OwnTime:
    """Seconds in which somebody ran who looks at this clock at least every `every_s`.

    A standstill of the process, or of the whole machine, counts as one interval: nobody's silence
    meanwhile proves anything. `clock` is the machine's, in seconds.
    """

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._looked_s = clock()
        self._own_s = 0.0
        self._still_s = 0.0

    def now_s(self) -> float:
        """Since the beginning, without standstills."""
        now_s = self._clock()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if passed_s > LATE * self._every_s:
            self._still_s += passed_s - self._every_s
            passed_s = self._every_s
        self._own_s += passed_s
        return self._own_s

    def stood_still_s(self) -> float:
        """How long it stood still since this was asked before."""
        found, self._still_s = self._still_s, 0.0
        return found
