"""Time in which a node's processes could run: the agent's own, less where processors were short."""

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

_PRESSURE = Path("/proc/pressure/cpu")
_SOME = re.compile(rb"^some .*total=(\d+)", re.MULTILINE)
_MOST_BYTES = 1 << 10
LEAST_PART = 4  # a limit is stretched so many times at most


class FreeTime:
    """Seconds that pass more slowly while somebody waits for a processor.

    `starved_s` is for how long in all somebody has waited so far; the kernel's word by default.
    """

    def __init__(self, starved_s: Callable[[], float] | None = None) -> None:
        self._starved_s = starved_s or pressure_s
        self._own_s = 0.0
        self._seen_s = self._starved_s()
        self._free_s = 0.0

    def at(self, own_s: float) -> float:
        """At this moment of the agent's own time."""
        passed_s, self._own_s = own_s - self._own_s, own_s
        before_s, self._seen_s = self._seen_s, self._starved_s()
        self._free_s += max(passed_s / LEAST_PART, passed_s - (self._seen_s - before_s))
        return self._free_s


def pressure_s() -> float:
    """0 where the kernel does not count. Cost: one system call, since it is asked all the time."""
    try:
        found = _SOME.search(os.pread(_pressure(), _MOST_BYTES, 0))
    except OSError:
        return 0.0
    return int(found[1]) / 1e6 if found else 0.0


@cache
def _pressure() -> int:
    """A descriptor for as long as the process. Raises: OSError where there is no such file."""
    return os.open(_PRESSURE, os.O_RDONLY | os.O_CLOEXEC)
