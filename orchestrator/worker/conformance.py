"""Whether the workers of a real run have said what their machines may say, event by event.

The journal has what they said. Its controller is played again, and what it asks of each worker is
given to a machine of that worker. When the worker heard a word is not in the journal: any moment
after the controller gave it will do, if there is one at which the machine says just what the
journal says next. How its duties ended is told by what it says of them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import LinePlace
from remesh.orchestrator.control.words import commands as cmd
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
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.records import StepRecord
from remesh.orchestrator.worker import heard
from remesh.orchestrator.worker.duties import TellIt
from remesh.orchestrator.worker.heard import Heard
from remesh.orchestrator.worker.reports import EVERY_S, Reports
from remesh.orchestrator.worker.seat import BUSY, Seat, Stance

SaidByWorker = (
    WorkerFormed
    | WorkerRestored
    | RestoreFailed
    | GroupBroken
    | StepsDone
    | FilesSaved
    | SaveFailed
    | WorkerParked
)
PlacedEvent = tuple[LinePlace, Event, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """All of the journal. `records` by who told them, "" for anybody, generation and step; `parks`
    by worker and generation.
    """

    records: dict[tuple[str, int, int], StepRecord]
    parks: dict[tuple[str, int], WorkerParked]


class ConformanceError(AssertionError):
    """A worker said what its machine does not say there. The message names line and event."""


@dataclass(slots=True, kw_only=True)
class _Witness:
    """A machine of one worker, what it was asked and may not have heard yet, and what it owes."""

    seat: Seat
    known: _Known
    unheard: list[Heard] = field(default_factory=list)
    owed: deque[Event] = field(default_factory=deque)

    def hear(self, word: Heard) -> None:
        said = [duty.event for duty in self.seat.handle(word) if isinstance(duty, TellIt)]
        self.owed.extend(said)

    def after(self, count: int) -> "_Witness":
        """The same once it has heard so many words more."""
        twin = deepcopy(self, {id(self.known): self.known})
        for word in twin.unheard[:count]:
            twin.hear(word)
        twin.unheard = twin.unheard[count:]
        return twin

    def says(self, event: SaidByWorker) -> bool:
        """Whether this is what it says next, however its duties ended."""
        if not self.owed:
            self._end_duties(event)
        return bool(self.owed) and _is_told(event, self.owed.popleft())

    def _end_duties(self, event: SaidByWorker) -> None:
        generation, seat = event.generation, self.seat
        match event:
            case WorkerFormed(form_s=form_s):
                self.hear(heard.MeshFormed(generation=generation, form_s=form_s))
            case WorkerRestored(at_step=at_step, restore_s=restore_s):
                self.hear(
                    heard.StateRestored(generation=generation, at_step=at_step, restore_s=restore_s)
                )
            case RestoreFailed(name=name, error=error):
                self.hear(heard.StateMissing(generation=generation, name=name, error=error))
            case GroupBroken(error=error, waited_for=waited_for):
                self.hear(
                    heard.MeshBroken(generation=generation, error=error, waited_for=waited_for)
                )
                self._close(self.known.parks.get((seat.worker, generation)))
            case StepsDone(records=records):
                for record in records:
                    self._step(generation, record, reports=record is records[-1])
            case FilesSaved(step=step, files=files):
                self._written(heard.FileWritten(generation=generation, step=step, files=files))
            case SaveFailed(step=step, error=error):
                self._written(heard.FileLost(generation=generation, step=step, error=error))
            case WorkerParked():
                self._park(event)

    def _written(self, word: heard.FileWritten | heard.FileLost) -> None:
        all_held = (word.generation, word.step, True) in self.seat.writing
        self.hear(replace(word, all_held=all_held))

    def _step(self, generation: int, record: StepRecord, *, reports: bool = False) -> None:
        """With the clock at the moment at which it reports, or does not yet."""
        self._copied(generation)
        now_s = (self.seat.reports.sent_s or 0.0) + EVERY_S * reports
        self.hear(heard.Stepped(generation=generation, record=record, now_s=now_s))

    def _copied(self, generation: int) -> None:
        if self.seat.stance is Stance.SAVING:
            self.hear(heard.PartCopied(generation=generation))

    def catch_up(self, event: SaidByWorker) -> None:
        """To where it must have been. All ranks have the same records: of a rank that does not
        report they are what others have told.
        """
        step, seat = self._step_of(event), self.seat
        while (seat.at_step or 0) < step and seat.stance in (Stance.TRAINING, Stance.SAVING):
            place = (seat.generation, (seat.at_step or 0) + 1)
            records = self.known.records
            record = records.get((seat.worker, *place)) or records.get(("", *place))
            if record is None or seat.generation != event.generation:
                return
            self._step(seat.generation, record)

    def _step_of(self, event: SaidByWorker) -> int:
        match event:
            case FilesSaved(step=step) | SaveFailed(step=step):
                return step
            case WorkerParked() | GroupBroken():
                parked = self.known.parks.get((event.worker, event.generation))
                own = parked is not None and parked.held_in == event.generation
                return (parked.at_step or 0) if parked and own else 0
            case _:
                return 0

    def _park(self, event: WorkerParked) -> None:
        """Cut short wherever it was, or at the boundary that all agreed on."""
        if event.drained:
            self._copied(event.generation)
        elif self.seat.stance in BUSY:
            self.hear(heard.CutShort(generation=self.seat.generation))
        self._close(event)

    def _close(self, parked: WorkerParked | None) -> None:
        """Amid a restore it may have lost what it held before."""
        seat = self.seat
        at_step = seat.at_step
        if parked is not None and parked.at_step is None and seat.held_in != seat.generation:
            at_step = None
        self.hear(heard.GroupsClosed(generation=seat.generation, at_step=at_step))


def check(options: Options, save_every: int, lines: Iterable[PlacedEvent]) -> int:
    """How many events of workers are what their machines say. `lines` are events with their
    places and moments, `save_every` the steps from checkpoint to checkpoint.

    Raises: ConformanceError at the first that is not.
    """
    lines = list(lines)
    controller, known = Controller(options), _known(lines)
    witnesses: dict[str, _Witness] = {}
    num_said = 0
    for place, event, now_s in lines:
        if isinstance(event, SaidByWorker):
            num_said += 1
            witness = witnesses.get(event.worker)
            found = witness and _moment(witness, event)
            if found is None:
                told = f"{event.worker} does not say {event} there"
                raise ConformanceError(f"line {place.line}: {told}")
            witnesses[event.worker] = found
        for command in controller.handle(event, now_s):
            if isinstance(command, cmd.StartWorker):
                seat = _seat(command.worker, options, save_every)
                witnesses.setdefault(command.worker, _Witness(seat=seat, known=known))
            for worker, word in _words(command):
                if worker in witnesses:
                    witnesses[worker].unheard.append(word)
    return num_said


def _moment(witness: _Witness, event: SaidByWorker) -> _Witness | None:
    """The witness after it has said this: the earliest moment for what it was asked that fits."""
    for count in range(len(witness.unheard) + 1):
        for before in range(count + 1):
            twin = witness.after(before)
            twin.catch_up(event)
            twin = twin.after(count - before)
            if twin.says(event):
                return twin
    return None


def _is_told(event: Event, said: Event) -> bool:
    """The journal keeps those records only that were news."""
    if isinstance(event, WorkerParked) and isinstance(said, WorkerParked):
        if not set(event.records) <= set(said.records):
            return False
        return replace(event, records=()) == replace(said, records=())
    return event == said


def _seat(worker: str, options: Options, save_every: int) -> Seat:
    return Seat(
        worker=worker,
        last_step=options.steps,
        save_every=save_every,
        reports=Reports(remember_s=float("inf")),
    )


def _words(command: cmd.Command) -> Iterator[tuple[str, Heard]]:
    """What this command tells whom."""
    match command:
        case cmd.Form(generation=generation, members=members, from_step=from_step):
            for member in members:
                yield (
                    member.worker,
                    heard.Called(
                        generation=generation,
                        rank=member.rank,
                        size=len(members),
                        from_step=from_step,
                    ),
                )
        case cmd.Fence(generation=generation, heard_step=heard_step):
            for worker in command.workers:
                yield worker, heard.Fenced(generation=generation, heard_step=heard_step)
        case cmd.Drain(generation=generation, save=save, heard_step=heard_step):
            word = heard.AskedToLeave(generation=generation, save=save, heard_step=heard_step)
            for worker in command.workers:
                yield worker, word
        case cmd.SaveHeld(generation=generation, step=step):
            for worker in command.workers:
                yield worker, heard.AskedToSave(generation=generation, step=step)
        case _:
            pass


def _known(lines: Iterable[PlacedEvent]) -> _Known:
    known = _Known(records={}, parks={})
    for _, event, _ in lines:
        if isinstance(event, StepsDone | WorkerParked):
            for record in event.records:
                known.records[event.worker, event.generation, record.step] = record
                known.records.setdefault(("", event.generation, record.step), record)
        if isinstance(event, WorkerParked):
            known.parks.setdefault((event.worker, event.generation), event)
    return known
