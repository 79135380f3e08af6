"""Where the wall-clock time of a run went: into steps that it stands on, or into something else.

All time from the start of a run to its newest event is dealt out exactly once: what the intervals
of finished steps cover to them, the rest to the reason why there was no step. Goodput is the share
of the first part. Time is dealt out when an event of the journal tells of it and never by asking a
clock: the sums after a replay are those of the live controller, and no counter goes back when
a controller is restarted. What lost: counting up to the moment of the question, which runs ahead of
the journal by what a crash then forgets.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from remesh.orchestrator.control.memory.generations import Generation
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.phases import ENDED, Phase
from remesh.orchestrator.control.words.records import StepRecord


class Reason(StrEnum):
    """Why no step that counts was made. `RETRAINING`: steps that had been finished before.

    `OVERHEAD` is the time between two steps of one mesh.
    """

    START = "start"
    WAITING = "waiting"
    RECOVERY = "recovery"
    RESIZE = "resize"
    RETRAINING = "retraining"
    SAVING = "saving"
    OVERHEAD = "overhead"


REASONS = tuple(reason.value for reason in Reason)
PHASES = tuple(phase.value for phase in Phase if phase not in ENDED)


@dataclass(slots=True, kw_only=True)
class Goodput:
    """Seconds by what they were for. `dealt_s` is the moment up to which all time is dealt out.

    Moments of steps come from the workers' clocks, which have to agree with the controller's.
    """

    productive_s: float = 0.0
    unproductive_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(REASONS, 0.0))
    phase_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    phase: Phase = Phase.WAITING
    reason: Reason = Reason.START
    since_s: float = 0.0
    seen_s: float = 0.0
    dealt_s: float = 0.0

    def begin(self, state: State, now_s: float) -> None:
        """A run starts, for the first time or again: the time before it belongs to nobody."""
        self.phase, self.reason = state.phase, reason_of(state)
        self.since_s = self.seen_s = self.dealt_s = now_s

    def step(self, record: StepRecord, before: Reason, *, again: bool, now_s: float) -> None:
        """A finished step; the time since the one before it went to `before`."""
        ended_s = min(record.ended_s, now_s)
        self._deal(ended_s - record.step_s, before)
        step_s = max(0.0, ended_s - self.dealt_s)
        if again:
            self.unproductive_s[Reason.RETRAINING] += step_s
        else:
            self.productive_s += step_s
        self.dealt_s = max(self.dealt_s, ended_s)

    def event(self, state: State, now_s: float) -> None:
        """Time has passed in the phase before this event; its steps are dealt out already.

        A mesh that trains tells of its steps late: what it does is known once it was left.
        """
        if self.phase in ENDED:
            return
        self.phase_s[self.phase] += max(0.0, now_s - self.seen_s)
        self.seen_s = now_s
        if not (_trains(self.phase) and _trains(state.phase)):
            self._deal(now_s, self.reason)
        if state.phase is not self.phase:
            self.phase, self.since_s = state.phase, now_s
        self.reason = reason_of(state)

    def _deal(self, until_s: float, reason: Reason) -> None:
        self.unproductive_s[reason] += max(0.0, until_s - self.dealt_s)
        self.dealt_s = max(self.dealt_s, until_s)


def reason_of(state: State) -> Reason:
    """Why the run makes no step at this moment."""
    if not state.generations:
        return Reason.START
    current = state.current
    if state.phase is Phase.WAITING:
        return Reason.WAITING
    if state.phase is Phase.FENCING:
        return Reason.RECOVERY
    if state.phase is Phase.DRAINING:
        return Reason.SAVING if current.saving else Reason.RESIZE
    if current.has_steps or state.phase in ENDED:
        return Reason.OVERHEAD
    return reason_to_form(state, current)


def reason_to_form(state: State, life: Generation) -> Reason:
    """Why this generation was formed."""
    if life is state.generations[0]:
        return Reason.START
    return Reason.RESIZE if life.fault is None else Reason.RECOVERY


def _trains(phase: Phase) -> bool:
    return phase in (Phase.RUNNING, Phase.DRAINING, Phase.FENCING)
