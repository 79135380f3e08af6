"""What a run has done so far, from its journals: the tally over all starts, the newest state."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from remesh.actors.history.journal_files import Journal
from remesh.actors.history.journal_writer import JournalWriter
from remesh.orchestrator.accounts.snapshot import Snapshot, decode, encode
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.control.journal import LinePlace
from remesh.orchestrator.control.memory.carrying import carried_of
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.carried import Carried
from remesh.orchestrator.control.words.codec_plans import CodecError
from remesh.orchestrator.control.words.commands import Announce, Command, End
from remesh.orchestrator.control.words.phases import Phase

EVERY = 10_000  # events, which take about a second to replay
LATEST = 80_000  # however busy the controller is: that of 16,384 ranks has 49,000 a recovery
SHARE = 4  # of the bytes of a journal at most one in so many is of a snapshot


_RECOVERING = (Phase.FENCING, Phase.FORMING, Phase.RESTORING)


class Handled(Protocol):
    """Where events are taken out: the place of the last one, its moment, and whether it is the
    last of its line.
    """

    place: LinePlace
    at_s: float
    ends_line: bool


class SnapshotWriter:
    """Writes down every now and then what there is, which the machine changes meanwhile.

    It does so between two events, and holds up nobody who brings one: those that have come in
    meanwhile are in the journal before the snapshot, which says where it belongs. The events of a
    recovery are not held up either, since steps wait for them.
    """

    def __init__(self, there: Snapshot, inbox: Handled, writer: JournalWriter) -> None:
        self._there = there
        self._inbox = inbox
        self._writer = writer
        self._events = 0
        self._due_bytes = 0

    def after_an_event(self) -> None:
        """Called by the thread that handles them, once what it has taken out is handled."""
        self._events += 1
        before = self._writer.num_bytes
        due = EVERY if self._there.state.phase not in _RECOVERING else LATEST
        if self._events >= due and before >= self._due_bytes and self._inbox.ends_line:
            values = encode(self._there)
            self._writer.snapshot(values, self._inbox.at_s, after=self._inbox.place.line)
            after = self._writer.num_bytes
            self._events, self._due_bytes = 0, after + (SHARE - 1) * (after - before)


class UnhandledError(Exception):
    """The event at that place of a start cannot be handled, and is not set aside."""

    def __init__(self, incarnation: int, place: LinePlace, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}"
        super().__init__(f"line {place.line} of start {incarnation}: {what}")
        self.where = (incarnation, place)


@dataclass(slots=True, kw_only=True)
class Replayed:
    """`unsaid` are the sentences that were decided on and not announced any more, `start` is the
    number of the newest start. `aside` are the events that cannot be handled and are not set aside
    in the journal, by start and place.
    """

    state: State
    tally: Tally
    start: int = 0
    unsaid: list[str] = field(default_factory=list)
    aside: Mapping[tuple[int, LinePlace], str] = field(default_factory=dict)

    def run(self, found: Journal) -> None:
        """Take in what happened in one start of the run. Raises: UnhandledError."""
        machine = found.machine(self.state)
        said = [entry["text"] for entry in found.announcements()]
        self.unsaid = []
        for place, event, now_s in found.handled():
            if (found.incarnation, place) in self.aside:
                continue
            try:
                self.unsaid += _sentences(machine.handle(event, now_s))
            except Exception as error:
                raise UnhandledError(found.incarnation, place, error) from error
            self.tally.note(event, now_s, machine.state)
        for text in said:  # in the order of the decisions, with a few others in between
            if self.unsaid[:1] == [text]:
                self.unsaid.pop(0)


def replayed(journals: Sequence[Journal]) -> Replayed:
    """The state of the newest start and what all of them have done, up to their newest event.

    A controller that died of an event did not get to set it aside: that is found out here.

    Cost: about 0.1 ms for each event since the newest snapshot; asked for as a controller begins.
    """
    aside: dict[tuple[int, LinePlace], str] = {}
    while True:
        try:
            return _replayed(journals, aside)
        except UnhandledError as error:
            aside[error.where] = str(error)


def state_before(found: Journal, place: LinePlace) -> State:
    """What the machine of this start knew before the event at that place."""
    later, state = found, State()
    if snapshot := _newest_snapshot(found):
        later, state = snapshot[0], snapshot[1].state
    machine = found.machine(state)
    for where, event, now_s in later.handled():
        if where >= place:
            break
        machine.handle(event, now_s)
    return machine.state


def _replayed(journals: Sequence[Journal], aside: Mapping[tuple[int, LinePlace], str]) -> Replayed:
    starts = list(journals)
    done = Replayed(state=State(), tally=Tally(), aside=aside)
    for index in range(len(starts) - 1, -1, -1):
        if snapshot := _newest_snapshot(starts[index]):
            later, there = snapshot
            done = Replayed(state=there.state, tally=there.tally, aside=aside)
            done.run(later)
            starts = starts[index + 1 :]
            break
    for found in starts:
        done.state = State()
        done.run(found)
    done.start = max((found.options.start for found in journals), default=0)
    return done


def newest_generation_of(found: Journal) -> int:
    """That of its last mesh, formed or not; one that ended before knows of the starts before it."""
    state = replayed([found]).state
    return max(found.options.last_generation, state.last_generation)


def carried_by(journals: Sequence[Journal]) -> Carried:
    """What the newest start hands on to the next. Of one whose events nobody can handle, nothing:
    it would end each start after it.
    """
    if not journals:
        return Carried()
    try:
        return carried_of(replayed(journals).state)
    except Exception:
        logging.getLogger(__name__).exception("a journal cannot be replayed")
        return Carried()


def _newest_snapshot(found: Journal) -> tuple[Journal, Snapshot] | None:
    """None if there is none, or if it does not fit: then the events tell the same."""
    before = found.snapshot()
    if before is None:
        return None
    with suppress(CodecError):
        return before[0], decode(before[1])
    return None


def _sentences(commands: Iterable[Command]) -> Iterator[str]:
    for command in commands:
        if isinstance(command, Announce):
            yield command.text
        elif isinstance(command, End):
            yield command.sentence
