"""What a run has done since its first start, in counters that never go back.

A fold over the events of all its journals, each looked at after the machine has handled it: the
machine knows which words were stale. A step counts towards tokens once, when it is finished for the
first time; training it again after a recovery adds to the lost steps and to the time of its reason.
"""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from enum import StrEnum
from typing import Any

from remesh.orchestrator.accounts.durations import STEP_BOUNDS_S, Histogram, SaveTimes, histogram
from remesh.orchestrator.accounts.goodput import Goodput, Reason, reason_to_form
from remesh.orchestrator.accounts.loss_curve import LossCurve
from remesh.orchestrator.control.memory.generations import Generation, RecoveryParts, report
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.records import StepRecord

PARTS = tuple(part.name for part in fields(RecoveryParts))


class Cause(StrEnum):
    """What a failure was. `NO_ANSWER`: a worker did not start, or leave a mesh, in its time.

    `BROKEN_MESH`: meshes broke before their first step although nobody was lost.
    """

    WORKER_DIED = "worker_died"
    WORKER_FROZEN = "worker_frozen"
    NODE_LOST = "node_lost"
    NO_ANSWER = "no_answer"
    BROKEN_MESH = "broken_mesh"
    JOB_ERROR = "job_error"


# What it was if the budget counts a failure on this event; on any other a mesh broke.
_CAUSES: Mapping[type[Any], Cause] = {
    ev.WorkerLost: Cause.WORKER_DIED,
    ev.WorkerFrozen: Cause.WORKER_FROZEN,
    ev.NodeLost: Cause.NODE_LOST,
    ev.NodeSilent: Cause.NODE_LOST,
    ev.NodeRefused: Cause.NODE_LOST,
    ev.WorkerErred: Cause.JOB_ERROR,
    ev.Tick: Cause.NO_ANSWER,
}


@dataclass(slots=True, kw_only=True)
class Frontier:
    """A set of steps: all up to `step`, and those of `ahead`."""

    step: int = 0
    ahead: set[int] = field(default_factory=set)

    def add(self, step: int) -> bool:
        """Whether the step was not in the set."""
        if step <= self.step or step in self.ahead:
            return False
        self.ahead.add(step)
        while self.step + 1 in self.ahead:
            self.step += 1
            self.ahead.remove(self.step)
        return True

    def fill(self, step: int) -> None:
        """Put every step up to this one into the set."""
        self.step = max(self.step, step)
        self.ahead = {ahead for ahead in self.ahead if ahead > self.step}


@dataclass(slots=True, kw_only=True)
class Tally:
    """`steps` and `tokens` count what was trained for the first time, `step_s` every step made.

    What follows `goodput` is memory: the steps counted so far, those heard of in `generation`, the
    step that the run stood on, and the failures and parts of a recovery that are counted already.
    """

    starts: int = 0
    steps: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    lost_steps: int = 0
    failures: dict[str, int] = field(default_factory=lambda: {cause.value: 0 for cause in Cause})
    recoveries: int = 0
    recovery_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    saves: SaveTimes = field(default_factory=SaveTimes)
    step_s: Histogram = field(default_factory=lambda: histogram(STEP_BOUNDS_S))
    losses: LossCurve = field(default_factory=LossCurve)
    goodput: Goodput = field(default_factory=Goodput)

    trained: Frontier = field(default_factory=Frontier)
    heard: Frontier = field(default_factory=Frontier)
    generation: int = 0
    stood_on: int = 0
    num_failures: int = 0
    parts: tuple[float, ...] | None = None

    def note(self, event: ev.Event, now_s: float, state: State) -> None:
        """Takes in an event that the machine with this state has just handled."""
        if not state.started:
            return
        if isinstance(event, ev.RunStarted):
            self._begin(state, now_s)
        # The generation may have been left on this very event: it is the one before it.
        life = next((g for g in state.generations[-2:] if g.generation == self.generation), None)
        if life is not None:
            if isinstance(event, (ev.StepsDone, ev.WorkerParked)):
                self._note_records(event, now_s, life, reason_to_form(state, life))
            self._note_recovery(life)
        self._note_generation(state)
        self._note_failures(event, state)
        self.saves.note(event, now_s, state)
        self.goodput.event(state, now_s)
        self.stood_on = state.step

    def _begin(self, state: State, now_s: float) -> None:
        """A start of the run. Steps beyond the checkpoint that it starts from are lost."""
        self.starts += 1
        self.lost_steps += max(0, self.stood_on - state.step)
        self.trained.fill(state.step)
        self.generation, self.parts, self.num_failures = 0, None, 0
        self.saves.begin(state)
        self.goodput.begin(state, now_s)

    def _note_records(
        self, event: ev.StepsDone | ev.WorkerParked, now_s: float, life: Generation, formed: Reason
    ) -> None:
        if event.generation != life.generation:
            return
        for record in self._accepted(event.records, life):
            before = formed if record.step == life.from_step + 1 else Reason.OVERHEAD
            again = not self.trained.add(record.step)
            self.goodput.step(record, before, again=again, now_s=now_s)
            self.step_s.observe(record.step_s)
            self.saves.step(record)
            if not again:
                self.steps += 1
                self.tokens += record.did.tokens
                self.losses.add(record.did.loss)
                self.skipped_steps += not record.did.applied

    def _accepted(self, records: tuple[StepRecord, ...], life: Generation) -> Iterator[StepRecord]:
        """The records that were news to the machine."""
        for record in records:
            known = record.step <= life.heard_step or record.step in life.heard_ahead
            if known and self.heard.add(record.step):
                yield record

    def _note_generation(self, state: State) -> None:
        if not state.generations or state.current.generation == self.generation:
            return
        life = state.current
        self.generation, self.parts = life.generation, None
        self.lost_steps += life.lost_steps
        self.heard = Frontier(step=life.from_step)
        self.trained.fill(life.from_step)
        self.saves.abandon(life.from_step)

    def _note_failures(self, event: ev.Event, state: State) -> None:
        cause = _CAUSES.get(type(event), Cause.BROKEN_MESH)
        self.failures[cause] += state.budget.total - self.num_failures
        self.num_failures = state.budget.total
        if isinstance(event, ev.WorkerErred) and state.phase is Phase.FAILED:
            self.failures[Cause.JOB_ERROR] += self.goodput.phase is not Phase.FAILED

    def _note_recovery(self, life: Generation) -> None:
        """The moment of a death may be learned late, and lost steps are trained again later: that
        makes a part longer which was counted already.
        """
        parts = report(life).recovery_parts
        if parts is None:
            return
        self.recoveries += self.parts is None
        before, self.parts = self.parts or (0.0,) * len(PARTS), astuple(parts)
        for part, length_s, before_s in zip(PARTS, self.parts, before, strict=True):
            self.recovery_s[part] += max(0.0, length_s - before_s)
