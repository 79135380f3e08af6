"""Time in which a node's processes could run: the agent's own, less where processors were short."""

import re
from collections.abc import Callable
from pathlib import Path

_PRESSURE = Path("/proc/pressure/cpu")
_SOME = re.compile(r"^some .*total=(\d+)", re.MULTILINE)
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
    """0 where the kernel does not count."""
    try:
        found = _SOME.search(_PRESSURE.read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1e6 if found else 0.0
