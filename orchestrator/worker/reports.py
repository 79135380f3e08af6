"""What a worker remembers of its steps until the controller has heard of them.

Rank 0 reports once a second. In case it dies, some others remember: every one of a small mesh, some
64 of a large one, spread over its nodes, since all have the same records and each would tell all.

Nothing is forgotten that the controller may not have heard: without a controller that hears, a
worker's lease runs out, so that no record is older than the lease and still needed. What lost: a
number of records, which is seconds of a quick job.
"""

from collections import deque
from dataclasses import dataclass, field

from remesh.orchestrator.control.words.records import StepRecord

EVERY_S = 1.0
TELLERS = 64
MOST_S = 1.0  # a standstill amid a step is no time in which leases run out


def remembers(rank: int, size: int) -> bool:
    """Whether this rank tells what rank 0 may not have told: 64 to 127 of a large mesh do."""
    return rank % max(1, size // TELLERS) == 0


@dataclass(slots=True, kw_only=True)
class Reports:
    """The steps of one generation. `remember_s` of training are kept, each step for a second at
    most; moments are seconds on any clock that only goes forward.
    """

    remember_s: float
    records: deque[StepRecord] = field(default_factory=deque)
    kept_s: float = 0.0
    unsent: list[StepRecord] = field(default_factory=list)
    reports: bool = False
    remembers: bool = False
    heard_step: int = 0
    sent_s: float | None = None

    def enter(self, rank: int, size: int) -> None:
        """Steps of the generation before were told when it was left, or are abandoned."""
        self.reports, self.remembers = rank == 0, remembers(rank, size)
        self.records.clear()
        self.kept_s, self.heard_step, self.sent_s = 0.0, 0, None
        self.unsent = []

    def heard(self, step: int) -> None:
        """The controller knows all steps up to this one."""
        self.heard_step = max(self.heard_step, step)
        while self.records and self.records[0].step <= self.heard_step:
            self._forget()

    def add(self, record: StepRecord, now_s: float) -> tuple[StepRecord, ...]:
        """What is to be reported now. The first of a generation is at once: it ends a recovery."""
        if self.remembers and record.step > self.heard_step:
            self.records.append(record)
            self.kept_s += _counted_s(record)
            while self.kept_s - _counted_s(self.records[0]) >= self.remember_s:
                self._forget()
        if not self.reports:
            return ()
        self.unsent.append(record)
        if self.sent_s is not None and now_s - self.sent_s < EVERY_S:
            return ()
        self.sent_s = now_s
        return self.rest()

    def rest(self) -> tuple[StepRecord, ...]:
        """What has not been reported yet."""
        rest, self.unsent = tuple(self.unsent), []
        return rest

    def unheard(self) -> tuple[StepRecord, ...]:
        """What is told when the generation is left."""
        return tuple(self.records)

    def _forget(self) -> None:
        self.kept_s -= _counted_s(self.records.popleft())


def _counted_s(record: StepRecord) -> float:
    return min(record.step_s, MOST_S)
