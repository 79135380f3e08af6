"""What all processes of a command spend, seen from outside: also of those that leave its session.

They are known by a variable of their environment, which each of them inherits, and told apart by
what they are called.
"""

import os
import threading
from collections import defaultdict
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
OTHERS = "others"
CALLED = {  # what stands at the start of a process's name, or somewhere in its command
    "worker-": "workers",
    "ddp_loop.py": "workers",
    "vault-": "vaults",
    "ray::Controller": "controller",
    "ray::Agent": "agents",
    "remesh.cli": "command",
    "ray": "Ray",
}


@dataclass(slots=True)
class Watch:
    """Of the processes with this mark: moments, and the seconds of processors by then, by kind."""

    mark: str
    moments_s: list[float] = field(default_factory=list)
    spent: list[dict[str, float]] = field(default_factory=list)
    _last: dict[int, tuple[str, float]] = field(default_factory=dict)

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

    def spent_s(self, from_s: float, until_s: float) -> dict[str, float]:
        """Between these moments, by kind."""
        moments = [from_s, until_s]
        kinds = sorted({kind for spent in self.spent for kind in spent})
        found = {}
        for kind in kinds:
            of_kind = [spent.get(kind, 0.0) for spent in self.spent]
            start, end = np.interp(moments, self.moments_s, of_kind)
            found[kind] = float(end - start)
        return found

    def _look(self, over: threading.Event) -> None:
        while not over.wait(EVERY_S):
            at_s = time()
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if self._is_marked(process):
                        self._last[int(process.name)] = _kind(process), _spent_s(process)
            self.moments_s.append(at_s)
            spent: dict[str, float] = defaultdict(float)
            for kind, spent_s in self._last.values():
                spent[kind] += spent_s
            self.spent.append(spent)

    def _is_marked(self, process: Path) -> bool:
        return f"{MARK}={self.mark}\0" in (process / "environ").read_text(errors="replace")


def _kind(process: Path) -> str:
    name = (process / "comm").read_text()
    command = (process / "cmdline").read_text(errors="replace")
    known = (kind for word, kind in CALLED.items() if name.startswith(word) or word in command)
    return next(known, OTHERS)


def _spent_s(process: Path) -> float:
    """By its own threads, as long as it lives."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S
