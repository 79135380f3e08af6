"""Whether this process itself stood still: then nobody's silence proves anything.

A process that was stopped, or whose host was, wakes up to a clock that has run on. Whoever is about
to hold a lateness against somebody asks here first, so the first to look finds the gap, and all
others are excused before it counts.
"""

import threading
import time
from collections.abc import Callable


class Pulse:
    """`excused` are called, once for each gap, with its seconds. `look` often: a gap counts if
    nobody has for longer than `limit_s`.
    """

    def __init__(
        self,
        limit_s: float,
        excused: tuple[Callable[[float], object], ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._excused = excused
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_s = clock()

    @property
    def every_s(self) -> float:
        """Who looks so often, alone, finds no gap where there was none."""
        return self._limit_s / 5

    def look(self) -> float:
        """Seconds for which nothing ran until now; 0 if it was not for long."""
        with self._lock:
            now_s = self._clock()
            gap_s, self._looked_s = now_s - self._looked_s, now_s
            if gap_s <= self._limit_s:
                return 0.0
            for excuse in self._excused:
                excuse(gap_s)
            return gap_s
