"""The journal: JSON lines of events, each written before the event is handled.

Replaying it gives the live state again. Events are kept rather than states: the events of a day are
small, every decision can be traced to what was known then, and losses and digests come along.
Between them stand the sentences that were announced, and now and then a snapshot of the state: it
spares a replay, and says nothing that the events do not say. Events of one kind that came together
share a line, so an event has a place: its line, and which one of that line it is.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, get_args

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words import codec
from remesh.orchestrator.control.words.codec_plans import CodecError
from remesh.orchestrator.control.words.events import Event
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.run_format import stamped, unstamped
from remesh.orchestrator.control.words.together import Together, apart, together
from remesh.orchestrator.user_errors import RemeshError

_EVENTS = get_args(Event)


class LinePlace(NamedTuple):
    """Where an event stands: its line, counted as in Remembered, and from 0 in that line."""

    line: int
    nth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A sentence that the user was told."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A snapshot of state and tally after the first `after` lines, as JSON.

    Nobody who begins with it needs a line before those: `line` is its own number, `announced`
    counts the announcements before it, of which `said` are the newest, and `nodes` are all that
    have ever joined. Lines are counted from 0 over all files of a start, their first ones left out.
    """

    after: int = 0
    line: int = 0
    announced: int = 0
    said: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    values: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """The event at that place could not be handled: an error of ours.

    The machine is as if it had not been told, and so is a replay. What lost: to end the run, and
    every later start at the same event.
    """

    line: int
    nth: int = 0
    error: str

    @property
    def place(self) -> LinePlace:
        return LinePlace(self.line, self.nth)


Written = Event | Announced | Remembered | SetAside


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a line says, and its moment."""

    at_s: float
    told: Written | Together


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The first line: the options of the machine, so that it can be replayed without the job file.

    `number` is that of the file. One that goes on with the journal of the same `start`, numbered by
    its first file, says how many lines of that count.
    """

    options: Options
    number: int
    start: int
    continues: int | None = None


class JournalError(RemeshError):
    """A journal holds a line that is none; only its last line may be cut short."""


def encode(told: Written | Together, now_s: float) -> str:
    """One line, without its end. Raises: CodecError for what could not be read back."""
    return _line(codec.encode(Entry, Entry(at_s=now_s, told=told)))


def encode_all(events: Iterable[Event], now_s: float) -> Iterator[tuple[str, int]]:
    """Lines for all of them in their order, each with the number of its events."""
    for _, alike in groupby(events, type):
        row = list(alike)
        if len(row) > 1 and (there := together(row)):
            yield encode(there, now_s), len(row)
        else:
            yield from ((encode(event, now_s), 1) for event in row)


def encode_remembered(there: Remembered, values: str, now_s: float) -> str:
    """Likewise for a snapshot whose `values`, which may be many, are JSON already."""
    line = encode(replace(there, values=None), now_s)
    return f"{line.removesuffix('null}}')}{values}}}}}"


def encode_values(values: Any) -> str:
    return _line(values)


def encode_opened(opened: Opened) -> str:
    return _line(stamped(codec.encode(Opened, opened)))


def decode_opened(values: Any, path: str) -> Opened:
    """Raises: RunFormatError if another version wrote them; CodecError."""
    opened: Opened = codec.decode(Opened, unstamped(values, path))
    return opened


def decode(line: str) -> Entry:
    """Raises: JournalError if the line is cut short or is not of a journal."""
    try:
        return _entry(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise _no_line(line, error) from None


def entries(lines: Iterable[str]) -> Iterator[Entry]:
    """All of them, each event by itself."""
    return (entry for _, entry in placed(lines))


def placed(lines: Iterable[str], first: int = 0) -> Iterator[tuple[LinePlace, Entry]]:
    """Likewise with their places, the lines counted from `first`.

    A last line that was cut short by a crash was never acted upon.
    """
    cut_short: JournalError | None = None
    for number, line in enumerate(lines, first):
        if cut_short is not None:
            raise cut_short
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            cut_short = _no_line(line, error)
            continue
        try:
            found = _each(_entry(values))
        except CodecError as error:
            raise _no_line(line, error) from None
        for nth, entry in enumerate(found):
            yield LinePlace(number, nth), entry


def read(lines: Iterable[str]) -> Iterator[tuple[Event, float]]:
    """All events with their moments."""
    for entry in entries(lines):
        if isinstance(entry.told, _EVENTS):
            yield entry.told, entry.at_s


def set_aside(lines: Iterable[str]) -> frozenset[LinePlace]:
    """The places of the events that could not be handled."""
    said = entries(line for line in lines if says(line, SetAside))
    return frozenset(entry.told.place for entry in said if isinstance(entry.told, SetAside))


def handled(lines: Sequence[str], first: int = 0) -> Iterator[tuple[LinePlace, Event, float]]:
    """All events that were handled, with their places, the lines counted from `first`, and their
    moments.
    """
    aside = set_aside(lines)
    for place, entry in placed(lines, first):
        if isinstance(entry.told, _EVENTS) and place not in aside:
            yield place, entry.told, entry.at_s


def replay(lines: Iterable[str], options: Options) -> Controller:
    """A controller in the state of the one that wrote these lines."""
    controller = Controller(options)
    for _, event, now_s in handled(list(lines)):
        controller.handle(event, now_s)
    return controller


def says(line: str, kind: type[Any]) -> bool:
    """Whether the line may be one of this kind: a quick look, without reading it."""
    return f'"{codec.CLASS}":"{kind.__name__}"' in line


def _each(entry: Entry) -> Sequence[Entry]:
    """The same, each event by itself. Raises: CodecError."""
    if not isinstance(entry.told, Together):
        return (entry,)
    return [replace(entry, told=event) for event in apart(entry.told)]


def _entry(values: Any) -> Entry:
    entry: Entry = codec.decode(Entry, values)
    return entry


def _line(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _no_line(line: str, error: Exception) -> JournalError:
    return JournalError(f"not a line of a journal: {line[:80]!r}: {str(error)[:200]}")
