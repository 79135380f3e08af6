"""Every how many steps a snapshot is due: as told, or as often as costs little enough. Pure.

The cost is that of the copy, during which training waits. What the vault does meanwhile is on
another core, and on the network between two steps' messages.
"""

import statistics
from collections import deque
from typing import Literal

SHARE = 0.01  # of step time that snapshots may cost
MEASURED = 16  # steps, and snapshots, that the interval follows from

Every = int | Literal["auto"]


class Pace:
    """`every` is a number of steps, 0 for never, or "auto"."""

    def __init__(self, every: Every) -> None:
        self._every = every
        self._steps_s: deque[float] = deque(maxlen=MEASURED)
        self._costs_s: deque[float] = deque(maxlen=MEASURED)
        self._marked_s: float | None = None
        self._cost_since_s = 0.0
        self._last = 0

    def begin(self, step: int) -> None:
        self._last = step
        self._marked_s = None

    def mark(self, now_s: float) -> None:
        """Called once a step, always at the same place of it."""
        if self._marked_s is not None:
            self._steps_s.append(max(now_s - self._marked_s - self._cost_since_s, 1e-9))
        self._marked_s, self._cost_since_s = now_s, 0.0

    def note(self, step: int, cost_s: float) -> None:
        self._last = step
        self._costs_s.append(cost_s)
        self._cost_since_s += cost_s

    def is_due(self, step: int) -> bool:
        if self._every == "auto":
            return step - self._last >= self.interval
        return self._every > 0 and step % self._every == 0

    @property
    def interval(self) -> int:
        """The least number of steps of which a snapshot costs less than its share; 1 at first."""
        if not self._costs_s or not self._steps_s:
            return 1
        cost_s, step_s = min(self._costs_s), statistics.median(self._steps_s)
        return int(cost_s / (SHARE * step_s)) + 1
