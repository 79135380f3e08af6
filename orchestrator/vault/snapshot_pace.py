"""Every how many steps a snapshot is due: as told, or as often as costs little enough. Pure.

The cost is measured: that of the copy, during which training waits, and by how much steps are
longer while the vault hashes and sends, for it may need a core that training uses too. Only what
steps differ by more than they do among themselves counts as longer.

What a loss costs is the interval. So each generation begins with a snapshot, without which the next
fault would go back behind it, and the interval is bounded in seconds, however dear a snapshot seems
among steps that are longer or shorter by chance: a world in which something dies every few seconds
would make no progress with steps that are lost each time. Only what costs more than a tenth of the
time even so is taken more rarely.
"""

import statistics
from collections import deque
from typing import Literal

SHARE = 0.01  # of step time that snapshots may cost
MOST_S = 2.0  # of training that a loss may cost, as long as snapshots cost
MOST_SHARE = 0.1  # of step time at most for that
MEASURED = 16  # steps of either kind, and copies, that the interval follows from
ENOUGH = 4  # steps of either kind to begin with

Every = int | Literal["auto"]


class Pace:
    """`every` is a number of steps, 0 for never, or "auto"."""

    def __init__(self, every: Every) -> None:
        self._every = every
        self._quiet_s: deque[float] = deque(maxlen=MEASURED)
        self._busy_s: deque[float] = deque(maxlen=MEASURED)
        self._copies_s: deque[float] = deque(maxlen=MEASURED)
        self._num_busy = self._num_taken = 0
        self._quiet_since = 0
        self._marked_s: float | None = None
        self._copied_s = 0.0
        self._is_busy = False
        self._is_first = True
        self._last = 0

    def begin(self, step: int) -> None:
        """A generation begins after this step."""
        self._last = step
        self._marked_s = None
        self._is_busy, self._is_first = False, True

    def mark(self, now_s: float, *, busy: bool) -> None:
        """Called once a step, always at the same place of it; `busy` while a snapshot is not safe.

        A step counts as busy if it began so, or with a snapshot.
        """
        if self._marked_s is not None:
            steps_s = self._busy_s if self._is_busy else self._quiet_s
            steps_s.append(max(now_s - self._marked_s - self._copied_s, 1e-9))
            self._num_busy += self._is_busy
            self._quiet_since += not self._is_busy
        self._marked_s, self._copied_s, self._is_busy = now_s, 0.0, busy

    def note(self, step: int, copy_s: float) -> None:
        """A snapshot of this step was copied."""
        self._last, self._is_first, self._is_busy = step, False, True
        self._copies_s.append(copy_s)
        self._copied_s += copy_s
        self._num_taken += 1
        self._quiet_since = 0

    def is_due(self, step: int) -> bool:
        if self._every != "auto":
            return self._every > 0 and step % self._every == 0
        if self._is_first:
            return True
        if not self._is_known:  # steps of both kinds are to be seen
            return self._quiet_since > 0 and not self._is_busy
        return step - self._last >= self.interval

    @property
    def interval(self) -> int:
        """The least number of steps of which a snapshot costs less than its share."""
        if not self._is_known:
            return 1
        quiet_s, busy_s = statistics.median(self._quiet_s), statistics.median(self._busy_s)
        by_chance_s = statistics.median(abs(step_s - quiet_s) for step_s in self._quiet_s)
        longer_s = max(0.0, busy_s - quiet_s - by_chance_s) * self._num_busy / self._num_taken
        cost_s = (statistics.median(self._copies_s) + longer_s) / quiet_s
        bounded = max(int(MOST_S / quiet_s), 1 + int(cost_s / MOST_SHARE))
        return min(1 + int(cost_s / SHARE), max(1, bounded))

    @property
    def _is_known(self) -> bool:
        return min(len(self._quiet_s), len(self._busy_s)) >= ENOUGH
