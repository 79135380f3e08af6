"""The journals of a run on disk: one file of JSON lines for each life of its controller.

A controller that takes over from a dead one continues its journal in a file of its own, whose first
line says how many lines came before: what the dead one may still write beyond them counts for
nobody. Each line carries a sum of itself and of those before it; `journal_reading` goes by it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import Announced, LinePlace, Remembered
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.events import (
    CheckpointCommitted,
    Event,
    NodeJoined,
    WorkerErred,
    WorkerLost,
)
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.phases import ENDED
from remesh.orchestrator.control.words.records import CheckpointState

FOLDER = "journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is wrong with a file among the journals. `line`, from 1, is the first that is not
    proven, None where that is the whole file.
    """

    file: str
    line: int | None = None
    what: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f': line {self.line}'} {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One start of the run, as its files prove it; `incarnation` is its first controller's.

    `sum` is that of all lines. With `damage` there may have been more of them than are proven. With
    `base`, a snapshot among them, lines before those that it does not hold are left out: `first` is
    the number of the first one that is here.
    """

    incarnation: int
    options: Options
    lines: tuple[str, ...]
    sum: int = 0
    damage: Damage | None = None
    base: Remembered | None = None
    first: int = 0

    @property
    def num_lines(self) -> int:
        return len(self.lines) + self.first

    def machine(self, state: State | None = None) -> Controller:
        """What the lines were written by, as it began or in this state."""
        return Controller(self.options, state)

    def replay(self) -> Controller:
        machine = self.machine()
        for _, event, now_s in self.handled():
            machine.handle(event, now_s)
        return machine

    def handled(self) -> Iterator[tuple[LinePlace, Event, float]]:
        """The events that were handled, with their places and their moments."""
        return journal.handled(self.lines, self.first)

    def announcements(self) -> Iterator[dict[str, Any]]:
        for entry in journal.entries(self._lines_of(Announced)):
            if isinstance(entry.told, Announced):
                yield {"at_s": entry.at_s, "text": entry.told.text}

    def told(self) -> Iterator[dict[str, Any]]:
        """The announcements, and the errors of workers with their tracebacks, oldest first."""
        for entry in journal.entries(self._lines_of(Announced, WorkerLost, WorkerErred)):
            told = entry.told
            if isinstance(told, Announced):
                yield {"at_s": entry.at_s, "text": told.text}
            elif isinstance(told, WorkerLost | WorkerErred) and told.traceback:
                text = f"{told.worker}: {cause_of(told)}"
                yield {"at_s": entry.at_s, "text": text, "traceback": told.traceback}

    def lost(self) -> dict[str, WorkerLost | WorkerErred]:
        """The first word of the end of each worker that ended before the run did, oldest first.

        Cost: a replay.
        """
        machine = self.machine()
        found: dict[str, WorkerLost | WorkerErred] = {}
        for _, event, now_s in self.handled():
            if isinstance(event, WorkerLost | WorkerErred) and machine.state.phase not in ENDED:
                found.setdefault(event.worker, event)
            machine.handle(event, now_s)
        return found

    def nodes(self) -> set[str]:
        """Every node that has ever joined."""
        joined = journal.read(self._lines_of(NodeJoined))
        found = {event.node for event, _ in joined if isinstance(event, NodeJoined)}
        return found | set(self.base.nodes) if self.base else found

    def said(self) -> tuple[int, list[str]]:
        """How many announcements are left out, and those that follow."""
        if self.base is None:
            return 0, [entry["text"] for entry in self.announcements()]
        later = self.since(self.base.line)
        texts = [*self.base.said, *(entry["text"] for entry in later.announcements())]
        return self.base.announced - len(self.base.said), texts

    def snapshot(self) -> tuple["Journal", Any] | None:
        """The newest one's values, and the lines that it does not hold."""
        for line in reversed(self.lines):
            if journal.says(line, Remembered):
                told = journal.decode(line).told
                if isinstance(told, Remembered) and told.after >= self.first:
                    return self.since(told.after), told.values
        return None

    def committed(self) -> CheckpointState | None:
        """The newest checkpoint that this start has made or found, None if there was none."""
        made = journal.read(self._lines_of(CheckpointCommitted))
        names = [event for event, _ in made if isinstance(event, CheckpointCommitted)]
        if names:
            return CheckpointState(step=names[-1].step, name=names[-1].name)
        found = self.options.resume
        return found if isinstance(found, CheckpointState) else None

    def since(self, line: int) -> "Journal":
        """Without the lines before that number."""
        return replace(self, lines=self.lines[line - self.first :], base=None, first=line)

    def newest_s(self) -> float:
        """The moment of the newest line, 0 if there is none."""
        return journal.decode(self.lines[-1]).at_s if self.lines else 0.0

    def _lines_of(self, *kinds: type[Any]) -> Iterator[str]:
        return (line for line in self.lines if any(journal.says(line, kind) for kind in kinds))


def cause_of(event: WorkerLost | WorkerErred) -> str:
    return event.cause if isinstance(event, WorkerLost) else event.error


def journal_path(run_folder: Path, number: int) -> Path:
    return run_folder / FOLDER / f"{number:06d}.jsonl"
