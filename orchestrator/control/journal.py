"""The journal: one JSON line for each event, written before the event is handled.

Replaying it gives the live state again. Events are kept rather than states: the events of a day are
small, every decision can be traced to what was known then, and losses and digests come along.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from typing import Any, get_args

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.events import Event
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.records import StepRecord, VaultSlot
from remesh.orchestrator.user_errors import RemeshError
from remesh.parallel.plan.cut import Cut, Held
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.step_result import StepResult
from remesh.parallel.state.root_manifest import ShardFile

KINDS = {kind.__name__: kind for kind in get_args(Event)}
NESTED = {
    "records": StepRecord,
    "did": StepResult,
    "files": ShardFile,
    "slots": VaultSlot,
    "held": Held,
    "layout": Layout,
    "cut": Cut,
}


class JournalError(RemeshError):
    """A journal holds a line that is none; only its last line may be cut short."""


def encode(event: Event, now_s: float) -> str:
    """One line, without its end."""
    entry = {"at_s": now_s, "event": type(event).__name__, **asdict(event)}
    return json.dumps(entry, separators=(",", ":"))


def decode(line: str) -> tuple[Event, float] | None:
    """The event and its moment; None for a kind of event that this version does not know.

    Raises: JournalError if the line is cut short or is not of a journal.
    """
    try:
        entry = json.loads(line)
        now_s, kind = float(entry.pop("at_s")), KINDS.get(entry.pop("event"))
        return None if kind is None else (_build(kind, entry), now_s)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalError(f"not a line of a journal: {line[:80]!r}") from error


def read(lines: Iterable[str]) -> Iterator[tuple[Event, float]]:
    """All known events. A last line that was cut short by a crash was never acted upon."""
    broken: JournalError | None = None
    for line in lines:
        if broken is not None:
            raise broken
        try:
            entry = decode(line)
        except JournalError as error:
            broken = error
            continue
        if entry is not None:
            yield entry


def replay(lines: Iterable[str], options: Options) -> Controller:
    """A controller in the state of the one that wrote these lines."""
    controller = Controller(options)
    for event, now_s in read(lines):
        controller.handle(event, now_s)
    return controller


def _build(kind: Any, values: dict[str, Any]) -> Any:
    """A value of `kind`; keys that a newer version added are left out."""
    known = {field.name for field in fields(kind)}
    return kind(**{name: _value(name, value) for name, value in values.items() if name in known})


def _value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_build(NESTED[name], item) for item in value)
    return _build(NESTED[name], value) if isinstance(value, dict) else value
