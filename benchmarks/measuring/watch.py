"""What all processes of a command spend, seen from outside: also of those that leave its session.

They are known by a variable of their environment, which each of them inherits.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Self

import numpy as np

MARK = "REMESH_BENCHMARK_OF"
EVERY_S = 0.25
TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Watch:
    """Of the processes with this mark: moments, and the processors' seconds by each of them."""

    mark: str
    moments_s: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    _last: dict[int, float] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def over(cls, mark: str) -> Iterator[Self]:
        """Looks until the block ends."""
        watch, over = cls(mark), threading.Event()
        thread = threading.Thread(target=watch._look, args=(over,))
        thread.start()
        try:
            yield watch
        finally:
            over.set()
            thread.join()

    def spent_s(self, moment_s: float) -> float:
        """Until this moment."""
        return float(np.interp(moment_s, self.moments_s, self.spent))

    def _look(self, over: threading.Event) -> None:
        while not over.wait(EVERY_S):
            at_s = time()
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if self._is_marked(process):
                        self._last[int(process.name)] = _spent_s(process)
            self.moments_s.append(at_s)
            self.spent.append(sum(self._last.values()))

    def _is_marked(self, process: Path) -> bool:
        return f"{MARK}={self.mark}\0" in (process / "environ").read_text(errors="replace")


def _spent_s(process: Path) -> float:
    """By its own threads, as long as it lives."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S
