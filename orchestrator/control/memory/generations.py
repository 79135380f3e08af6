"""The life of one mesh: who it waits for, what it has done, and what it cost to get there."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

from remesh.orchestrator.control.words.records import Member, PeerState, Restore, StepRecord
from remesh.orchestrator.control.words.recovery import slots_of, source_label
from remesh.orchestrator.plan.rung import Rung
from remesh.parallel.plan.layout import Layout

MAX_SAID = 8  # losses in a sentence


@dataclass(slots=True, kw_only=True)
class Fault:
    """Why a generation ends before its work is done. Moments are seconds on the journal's clock.

    `died_at_s` is when it began where that is known: a death, or the last sign of life of what
    froze or fell silent.

    `signs` has the first one, `losses` the first few of the `num_losses`, `lost` the names of all.
    """

    first_sign_s: float
    died_at_s: float | None = None
    signs: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    num_losses: int = 0
    lost: set[str] = field(default_factory=set)

    @property
    def cause(self) -> str:
        """The losses, if any were seen: a broken group does not say who broke it."""
        more = [f"and {self.num_losses - MAX_SAID} more"] if self.num_losses > MAX_SAID else []
        return "; ".join([*self.losses, *more] or self.signs)

    @property
    def began_s(self) -> float:
        """The moment of the fault itself, of its first sign where that is not known."""
        return self.first_sign_s if self.died_at_s is None else self.died_at_s

    def note_sign(self, text: str) -> None:
        if not self.signs:
            self.signs.append(text)

    def note_loss(self, text: str) -> None:
        self.num_losses += 1
        if len(self.losses) < MAX_SAID:
            self.losses.append(text)

    def note_death(self, died_at_s: float | None) -> None:
        """The first death counts, and never one after the first sign: that had another cause."""
        if died_at_s is not None:
            self.died_at_s = min(died_at_s, self.began_s)


@dataclass(slots=True, kw_only=True)
class Generation:
    """`rung` is the mesh. `fault` is what ended the one before.

    `members` and the slots of `restore` are there while it is one of the newest two, `num_workers`
    and `source`, where the state came from in short, for ever.
    `unparked` are the members that may still train.
    `saving`: what it does last is to save. `held_save` is the (generation, step) of what its parked
    workers save after it. `is_last`: the run ends once it has saved. `blamed`: a failure of its
    restore was counted already.
    `stuck` are those that make no progress, with the (step, operation) at which they stand, and
    since when; those `at_rest` of them have told early. `stalled`: it was left since all of them
    stood at the same. `explained`: it is known why it ended, which was no node.
    `heard_step` is the newest step up to which no record is missing. `back_s` is the end of the
    newest step until what was lost is trained again, with the first new one.
    """

    generation: int
    rung: Rung
    members: tuple[Member, ...]
    num_workers: int
    restore: Restore
    source: str
    from_step: int
    reason: str
    lost_steps: int
    asked_s: float
    fault: Fault | None
    unformed: set[str]
    unrestored: set[str]
    unparked: set[str]
    saving: bool = False
    held_save: tuple[int, int] | None = None
    is_last: bool = False
    blamed: bool = False
    stalled: bool = False
    explained: bool = False
    stuck: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    at_rest: set[str] = field(default_factory=set)
    formed_s: float | None = None
    restored_s: float | None = None
    first_step_s: float | None = None
    back_s: float | None = None
    heard_step: int = 0
    heard_ahead: set[int] = field(default_factory=set)

    @property
    def layout(self) -> Layout:
        return self.rung.layout

    @property
    def has_steps(self) -> bool:
        return self.heard_step > self.from_step or bool(self.heard_ahead)

    def shorten(self) -> None:
        """Keeps what may still be asked for: nobody is in it any more."""
        self.members = ()
        if isinstance(self.restore, PeerState):
            self.restore = replace(self.restore, slots=())
        if self.fault is not None:
            self.fault.lost.clear()

    def drop(self, worker: str) -> None:
        """A lost worker is waited for no more."""
        for waiting in (self.unformed, self.unrestored, self.unparked):
            waiting.discard(worker)

    def note_restored(self, now_s: float) -> None:
        """Every member trains: also said by a first step that overtook the last report."""
        self.unformed.clear()
        self.unrestored.clear()
        self.formed_s = self.formed_s or now_s
        self.restored_s = self.restored_s or now_s

    def note_record(self, record: StepRecord) -> bool:
        """Whether the step is news. Reports may come late, doubled or out of order."""
        if record.step <= self.heard_step or record.step in self.heard_ahead:
            return False
        self.heard_ahead.add(record.step)
        while self.heard_step + 1 in self.heard_ahead:
            self.heard_step += 1
            self.heard_ahead.remove(self.heard_step)
        if record.step == self.from_step + 1:
            self.first_step_s = record.ended_s
        if record.step <= self.from_step + self.lost_steps + 1:
            self.back_s = max(self.back_s or record.ended_s, record.ended_s)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryParts:
    """Seconds from the fault to its first sign, to the decision, and on to the first step.

    `retrain`: from there to the first new one, past the steps that were lost.
    """

    detect: float
    decide: float
    form: float
    restore: float
    first_step: float
    retrain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReport:
    """`recovery_s` runs from the fault to the end of the first new step after it, lost steps that
    are trained again included, as far as they are; None without a step.

    `lost_steps` were finished before the fault and had to be trained again. `source` says where the
    state came from that it started with.
    """

    generation: int
    layout: Layout
    workers: int
    from_step: int
    reason: str
    started_s: float
    died_at_s: float | None
    recovery_s: float | None
    recovery_parts: RecoveryParts | None
    lost_steps: int
    source: str = ""


def report(life: Generation) -> GenerationReport:
    died_at_s = None if life.fault is None else life.fault.began_s
    ended_s = _back_s(life)
    return GenerationReport(
        generation=life.generation,
        layout=life.layout,
        workers=life.num_workers,
        from_step=life.from_step,
        reason=life.reason,
        started_s=life.asked_s,
        died_at_s=died_at_s,
        recovery_s=None if died_at_s is None or ended_s is None else ended_s - died_at_s,
        recovery_parts=_recovery_parts(life),
        lost_steps=life.lost_steps,
        source=life.source,
    )


def source_in_short(restore: Restore) -> str:
    """Such as "live ranks, vaults of a, b"; a label of what it read, and from whom."""
    if not isinstance(restore, PeerState):
        return source_label(restore)
    vaults = sorted({slot.vault for slot in slots_of(restore)})
    live = [] if restore.source is None else ["live ranks"]
    stored = [f"vault{'s' if len(vaults) > 1 else ''} of {', '.join(vaults)}"] if vaults else []
    return ", ".join(live + stored)


def _back_s(life: Generation) -> float | None:
    """None before the first step, of which later ones may be heard earlier."""
    if life.first_step_s is None or life.back_s is None:
        return None
    return max(life.first_step_s, life.back_s)


def _recovery_parts(life: Generation) -> RecoveryParts | None:
    fault, first_step_s, back_s = life.fault, life.first_step_s, _back_s(life)
    if fault is None or first_step_s is None or back_s is None:
        return None
    # The last report of a restore may arrive after the first step ended: no part is negative.
    known = [
        fault.began_s,
        fault.first_sign_s,
        life.asked_s,
        first_step_s if life.formed_s is None else life.formed_s,
        first_step_s if life.restored_s is None else life.restored_s,
        first_step_s,
    ]
    moments = [min(moment, first_step_s) for moment in known]
    for index in range(1, len(moments)):
        moments[index] = max(moments[index], moments[index - 1])
    spans = [after - before for before, after in pairwise(moments)]
    detect, decide, form, restore, first_step = spans
    return RecoveryParts(
        detect=detect,
        decide=decide,
        form=form,
        restore=restore,
        first_step=first_step,
        retrain=back_s - first_step_s,
    )
