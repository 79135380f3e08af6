"""Many seeds, shared out over the processors, and what came of them together."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from os import cpu_count

from remesh.orchestrator.sim.draws import simulate
from remesh.orchestrator.sim.simulation import SimulationError

CHUNK = 50


@dataclass(slots=True)
class Sum:
    """What came of some seeds: how they ended, what they reached, and what broke, by seed."""

    statuses: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    @property
    def seeds(self) -> int:
        return self.statuses.total() + len(self.broken)

    def add(self, other: "Sum") -> None:
        self.statuses += other.statuses
        self.reached += other.reached
        self.broken += other.broken


def shared_out(seeds: range) -> Iterator[Sum]:
    """A sum for every few of them, in their order."""
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    if len(chunks) == 1:
        yield simulated(seeds)
        return
    with get_context("spawn").Pool(min(cpu_count() or 1, len(chunks))) as pool:
        yield from pool.imap(simulated, chunks)


def simulated(seeds: Iterable[int]) -> Sum:
    total = Sum()
    for seed in seeds:
        try:
            outcome = simulate(seed)
        except SimulationError as error:
            again = f"python -m remesh.orchestrator.sim --trace --seed {seed}"
            total.broken.append(f"{error}\n  again: {again}")
        else:
            total.statuses[outcome.status] += 1
            total.reached += outcome.coverage.reached
    return total
