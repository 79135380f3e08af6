"""What was trained, proven from the records in the journal: losses by step, samples by digest.

Records are kept by (generation, step); only the lineage says which of them the run stands on. A
step that a later generation trained again after its state was lost is counted once, as the later
generation's: the abandoned record belongs to a timeline that no parameter remembers.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words.events import Event, StepsDone, WorkerParked
from remesh.orchestrator.control.words.records import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCounts:
    """Counts of samples. `digest` chains the digests of all steps in order.

    `consumed` are those that are proven, and `unproven` those of steps of which nobody can tell.
    With such steps `lost` and `repeated` are None instead of 0, and there is no digest.
    """

    expected: int
    consumed: int
    unproven: int
    lost: int | None
    repeated: int | None
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The steps after `first` up to and including `last`, each of `global_batch` samples.

    Of `unproven` ones the journals that would hold a record are not whole.
    """

    first: int
    last: int
    global_batch: int
    unproven: frozenset[int] = frozenset()

    @property
    def steps(self) -> range:
        return range(self.first + 1, self.last + 1)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """A fold over the events of one or more runs of a job, in any order and with repetitions."""

    records: dict[tuple[int, int], StepRecord] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        if isinstance(event, (StepsDone, WorkerParked)):
            for record in event.records:
                self.records.setdefault((event.generation, record.step), record)

    def trained(self, lineage: Lineage, span: Span) -> list[StepRecord | None]:
        """The record of each step that the run stands on, None where there is none."""
        return [self._record(lineage, step) for step in span.steps]

    def samples(self, lineage: Lineage, span: Span, expected: Callable[[int], str]) -> SampleCounts:
        """Compares each step's digest with `expected(step)`.

        A step without a record has lost its batch. One with another digest has lost it too, and
        what it consumed instead counts as repeated, as does a step that was trained a second time
        on top of a state that held it.
        """
        consumed = lost = repeated = 0
        unproven = span.global_batch * len(span.unproven)
        chain = hashlib.sha256()
        for step, record in zip(span.steps, self.trained(lineage, span), strict=True):
            if record is None:
                lost += 0 if step in span.unproven else span.global_batch
                continue
            consumed += record.did.samples
            chain.update(record.did.digest.encode() + b"\n")
            if record.did.digest != expected(step):
                lost += span.global_batch
                repeated += record.did.samples
        repeated += sum(record.did.samples for record in self._twice(lineage))
        return SampleCounts(
            expected=span.global_batch * len(span.steps),
            consumed=consumed,
            unproven=unproven,
            lost=None if unproven and not lost else lost,
            repeated=None if unproven and not repeated else repeated,
            digest=None if unproven else chain.hexdigest(),
        )

    def _record(self, lineage: Lineage, step: int) -> StepRecord | None:
        owner = lineage.owner(step)
        return None if owner is None else self.records.get((owner, step))

    def _twice(self, lineage: Lineage) -> Iterator[StepRecord]:
        """Steps that a generation trained although it had started from a state beyond them."""
        began = dict(lineage.chain)
        for (generation, step), record in self.records.items():
            if step <= began.get(generation, -1):
                yield record
