"""What one answer to a scrape shows: the machine's state and the tally, as samples by label."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.accounts.view import View
from remesh.orchestrator.control.memory.membership import NodeState, WorkerState
from remesh.orchestrator.control.words.phases import Phase
from remesh.parallel.plan.layout import Layout

AXES = tuple(asdict(Layout()))

MetricSamples = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """`run` is the name of the job, `version` that of Remesh."""

    run: str
    version: str
    view: View
    tally: Tally

    @property
    def world_size(self) -> int:
        return sum(worker.rank is not None for worker in self.view.workers)

    def last(self, field: str) -> float | None:
        """A field of the newest step's record, None before the first step."""
        return None if self.view.last is None else getattr(self.view.last.did, field)

    def states(self) -> MetricSamples:
        return (((phase.value,), float(phase.value == self.view.phase)) for phase in Phase)

    def degrees(self) -> MetricSamples:
        """The length of each axis; all 0 while there is no mesh."""
        layout = self.view.layout if self.world_size else None
        degrees = dict.fromkeys(AXES, 0) if layout is None else asdict(layout)
        return (((axis,), float(degree)) for axis, degree in degrees.items())

    def ranks(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for worker in self.view.workers:
            if worker.rank is not None:
                yield (str(worker.rank), worker.node), 1.0

    def worker_states(self) -> MetricSamples:
        states = (state.value for state in WorkerState)
        return _counts(states, (worker.state for worker in self.view.workers))

    def node_states(self) -> MetricSamples:
        states = (state.value for state in NodeState)
        return _counts(states, (node.state for node in self.view.nodes))


def _counts(states: Iterable[str], present: Iterable[str]) -> MetricSamples:
    """How many there are in each state, those with none included."""
    counts = dict.fromkeys(states, 0)
    for state in present:
        counts[state] += 1
    return (((state,), float(count)) for state, count in counts.items())
