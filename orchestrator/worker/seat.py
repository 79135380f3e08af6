"""What one worker decides, whether it lives or is simulated: a machine with one mutator.

A parked worker holds no group and touches nothing, so only parking acknowledges a fence: whoever
comes second, the parking or the request, has it acknowledged. A fence is sticky and only grows,
because the word that ends a generation may overtake the one that forms it.

What lost: deciding where it is done, in the trainer and in the simulator's process. The two were
kept alike by hand, and the simulated one was the kinder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from remesh.orchestrator.control.words.events import (
    Event,
    FilesSaved,
    GroupBroken,
    RestoreFailed,
    SaveFailed,
    StepsDone,
    WorkerFormed,
    WorkerParked,
    WorkerRestored,
)
from remesh.orchestrator.control.words.records import StepRecord
from remesh.orchestrator.worker import duties as do
from remesh.orchestrator.worker import heard
from remesh.orchestrator.worker.duties import Duty
from remesh.orchestrator.worker.heard import Heard
from remesh.orchestrator.worker.reports import Reports


class Stance(StrEnum):
    """What it is about: for each but `PARKED` one duty is under way."""

    PARKED = "parked"
    FORMING = "forming"
    RESTORING = "restoring"
    TRAINING = "training"
    SAVING = "saving"
    LEAVING = "leaving"


_SaveKey = tuple[int, int, bool]  # generation, step, whether it is all that is held


@dataclass(slots=True, kw_only=True)
class Seat:
    """`at_step` is the step whose state it holds its part of since the generation `held_in`.

    `fenced` is the newest generation that is over, `unanswered` the newest one whose end is not
    acknowledged yet, `called` the mesh that waits for this one to be left. `ending` is what is told
    of the generation that is being left, with the ranks `waited_for`, and `writing` are the saves
    on their way to storage.
    """

    worker: str
    last_step: int
    save_every: int
    reports: Reports
    stance: Stance = Stance.PARKED
    generation: int = 0
    from_step: int = 0
    at_step: int | None = None
    held_in: int = 0
    fenced: int = 0
    unanswered: int = 0
    called: heard.Called | None = None
    asked: heard.AskedToLeave | None = None
    leaves: bool = False
    ending: str = ""
    waited_for: tuple[int, ...] = ()
    drained: bool = False
    writing: set[_SaveKey] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        """Whether the generation that it is in counts for nothing any more."""
        return self.fenced >= self.generation or self.called is not None

    @property
    def _own_save(self) -> _SaveKey:
        """That of its rank's part of the state that it holds now."""
        return self.generation, self.at_step or 0, False

    def handle(self, word: Heard) -> list[Duty]:
        """What to do, in this order. A word about an older generation is heard and changes nothing.

        Words in any order do no harm: one that ends no duty under way is passed over.
        """
        if not isinstance(word, heard.DutyEnded):
            return self._on_order(word)
        ends_it = self.stance in ENDS[type(word)] and word.generation == self.generation
        return self._on_ended(word) if ends_it else []

    def _on_order(self, word: heard.SeatOrder) -> list[Duty]:
        match word:
            case heard.Called():
                duties = self._on_called(word)
            case heard.Fenced():
                duties = self._on_fenced(word)
            case heard.AskedToLeave():
                duties = self._on_asked_to_leave(word)
            case heard.AskedToSave():
                duties = self._on_asked_to_save(word)
            case heard.FileWritten() | heard.FileLost():
                duties = self._on_file(word)
            case _:
                assert_never(word)
        return duties

    def _on_ended(self, word: heard.DutyEnded) -> list[Duty]:
        match word:
            case heard.MeshFormed():
                duties = self._on_formed(word)
            case heard.StateRestored():
                duties = self._on_restored(word)
            case heard.StateMissing():
                duties = self._on_missing(word)
            case heard.Stepped():
                duties = self._on_stepped(word)
            case heard.PartCopied():
                duties = self._on_copied()
            case heard.MeshBroken():
                self.waited_for = word.waited_for
                duties = self._leave(ending=word.error)
            case heard.CutShort():
                duties = self._on_cut_short()
            case heard.GroupsClosed():
                duties = self._on_closed(word)
            case _:
                assert_never(word)
        return duties

    def _on_called(self, word: heard.Called) -> list[Duty]:
        """A newer mesh ends the one that it is in: that one's end was told and not heard."""
        newest = self.called.generation if self.called else self.generation
        if word.generation <= max(newest, self.fenced):
            return []
        self.called = word
        if self.stance is Stance.PARKED:
            return self._enter()
        return [do.RaiseFence(generation=self.generation)]

    def _on_fenced(self, word: heard.Fenced) -> list[Duty]:
        if word.generation < self.generation:
            return []
        self.fenced = max(self.fenced, word.generation)
        if self.called and self.called.generation <= self.fenced:
            self.called = None
        if word.generation == self.generation:
            self.reports.heard(word.heard_step)
        up = do.RaiseFence(generation=word.generation)
        if self.stance is Stance.PARKED:
            return [up, self._parked(word.generation)]
        self.unanswered = max(self.unanswered, word.generation)
        return [up]

    def _on_asked_to_leave(self, word: heard.AskedToLeave) -> list[Duty]:
        """A later request counts: it may want a save where the one before did not."""
        if word.generation == self.generation:
            self.asked = word
            self.reports.heard(word.heard_step)
        return []

    def _on_asked_to_save(self, word: heard.AskedToSave) -> list[Duty]:
        """A mesh that came to nothing since changes nothing of what is held from one before it."""
        save = (word.generation, word.step, True)
        if word.generation < self.held_in or save in self.writing:
            return []
        if self.stance is not Stance.PARKED or self.at_step != word.step:
            has = "none" if self.at_step is None else f"that at step {self.at_step}"
            error = f"it holds no state at step {word.step} that stands still, but {has}"
            return [do.TellIt(event=self._save_failed(save, error))]
        self.writing.add(save)
        return [do.WriteHeld(generation=word.generation, step=word.step)]

    def _on_file(self, word: heard.FileWritten | heard.FileLost) -> list[Duty]:
        """What was copied is told of, whatever has become of the generation since."""
        save = (word.generation, word.step, word.all_held)
        if save not in self.writing:
            return []
        self.writing.discard(save)
        event: Event
        if isinstance(word, heard.FileLost):
            event = self._save_failed(save, word.error)
        else:
            event = FilesSaved(
                worker=self.worker, generation=word.generation, step=word.step, files=word.files
            )
        return [do.TellIt(event=event)]

    def _on_formed(self, word: heard.MeshFormed) -> list[Duty]:
        if self.is_over:
            return self._leave()
        self.stance = Stance.RESTORING
        event = WorkerFormed(worker=self.worker, generation=self.generation, form_s=word.form_s)
        return [do.TellIt(event=event), do.RestoreState(generation=self.generation)]

    def _on_restored(self, word: heard.StateRestored) -> list[Duty]:
        self.at_step, self.held_in = word.at_step, self.generation
        if self.is_over:
            return self._leave()
        event = WorkerRestored(
            worker=self.worker,
            generation=self.generation,
            at_step=word.at_step,
            restore_s=word.restore_s,
        )
        duties: list[Duty] = [do.TellIt(event=event)]
        if word.at_step != self.from_step:  # the controller hears it, and blames the source
            return duties + self._leave()
        duties.append(do.BeginSteps(generation=self.generation))
        if word.at_step >= self.last_step:  # a last step that was not saved is saved again
            return duties + self._save(leaves=True)
        return duties + self._train()

    def _on_missing(self, word: heard.StateMissing) -> list[Duty]:
        if self.is_over:
            return self._leave()
        event = RestoreFailed(
            worker=self.worker, generation=self.generation, name=word.name, error=word.error
        )
        return [do.TellIt(event=event), *self._leave()]

    def _on_stepped(self, word: heard.Stepped) -> list[Duty]:
        """The vote's result holds for all ranks: where it says so, all save, and all leave."""
        step, did = word.record.step, word.record.did
        if self.at_step is None or step != self.at_step + 1:
            return []
        self.at_step = step
        duties = self._report(self.reports.add(word.record, word.now_s))
        if self.is_over:
            return duties + self._leave()
        if did.stable_step is not None:
            duties.append(do.NoteStable(step=did.stable_step))
        if did.snapshot:
            duties.append(do.KeepSnapshot(step=step))
        leaves = did.drain or step >= self.last_step
        if did.save or step >= self.last_step or step % self.save_every == 0:
            return duties + self._save(leaves=leaves)
        return duties + (self._leave(drained=True) if leaves else self._train())

    def _on_copied(self) -> list[Duty]:
        if self.is_over:
            return self._leave()
        return self._leave(drained=True) if self.leaves else self._train()

    def _on_cut_short(self) -> list[Duty]:
        if self.stance is Stance.SAVING:
            self.writing.discard(self._own_save)
        return self._leave()

    def _on_closed(self, word: heard.GroupsClosed) -> list[Duty]:
        """Only now is it told what ended it: closing frees the neighbours at once."""
        self.stance, self.at_step = Stance.PARKED, word.at_step
        duties: list[Duty] = []
        if self.ending and not self.is_over:
            event = GroupBroken(
                worker=self.worker,
                generation=self.generation,
                error=self.ending,
                waited_for=self.waited_for,
            )
            duties.append(do.TellIt(event=event))
        if self.drained:
            duties.append(self._parked(self.generation, drained=True))
        if self.unanswered > self.generation or (self.unanswered and not self.drained):
            duties.append(self._parked(self.unanswered))
        self.unanswered = 0
        return duties + (self._enter() if self.called else [])

    def _enter(self) -> list[Duty]:
        called, self.called = self.called, None
        assert called
        self.stance = Stance.FORMING
        self.generation, self.from_step = called.generation, called.from_step
        self.asked, self.leaves, self.ending, self.drained = None, False, "", False
        self.waited_for = ()
        self.reports.enter(called.rank, called.size)
        return [do.BuildMesh(generation=self.generation)]

    def _train(self) -> list[Duty]:
        assert self.at_step is not None
        self.stance = Stance.TRAINING
        asked = self.asked
        return [
            do.Train(
                generation=self.generation,
                step=self.at_step + 1,
                leave=asked is not None,
                save=asked is not None and asked.save,
            )
        ]

    def _save(self, *, leaves: bool) -> list[Duty]:
        """The steps are told before the files: none is committed before its steps are known."""
        assert self.at_step is not None
        self.stance, self.leaves = Stance.SAVING, leaves
        self.writing.add(self._own_save)  # it may be written before the copy is heard of
        copy = do.CopyPart(generation=self.generation, step=self.at_step)
        return [*self._report(self.reports.rest()), copy]

    def _leave(self, *, drained: bool = False, ending: str = "") -> list[Duty]:
        self.stance, self.drained, self.ending = Stance.LEAVING, drained, ending
        rest = self._report(self.reports.rest()) if drained else []
        return [*rest, do.CloseGroups(generation=self.generation)]

    def _report(self, records: tuple[StepRecord, ...]) -> list[Duty]:
        if not records:
            return []
        event = StepsDone(worker=self.worker, generation=self.generation, records=records)
        return [do.TellIt(event=event)]

    def _parked(self, generation: int, *, drained: bool = False) -> do.TellIt:
        own = generation == self.generation
        return do.TellIt(
            event=WorkerParked(
                worker=self.worker,
                generation=generation,
                at_step=self.at_step,
                drained=drained,
                held_in=self.held_in,
                records=self.reports.unheard() if own else (),
            )
        )

    def _save_failed(self, save: _SaveKey, error: str) -> SaveFailed:
        generation, step, _ = save
        return SaveFailed(worker=self.worker, generation=generation, step=step, error=error)


BUSY = frozenset(Stance) - {Stance.PARKED, Stance.LEAVING}

# What is under way when each of these words may come.
ENDS: Mapping[type[heard.DutyEnded], frozenset[Stance]] = {
    heard.MeshFormed: frozenset({Stance.FORMING}),
    heard.StateRestored: frozenset({Stance.RESTORING}),
    heard.StateMissing: frozenset({Stance.RESTORING}),
    heard.Stepped: frozenset({Stance.TRAINING}),
    heard.PartCopied: frozenset({Stance.SAVING}),
    heard.MeshBroken: BUSY,
    heard.CutShort: BUSY,
    heard.GroupsClosed: frozenset({Stance.LEAVING}),
}
