"""The journals of a run on disk: one file of JSON lines for each life of its controller.

A controller that takes over from a dead one continues its journal in a file of its own, whose first
line says how many lines came before: what the dead one may still write beyond them counts for
nobody. Each line carries a sum of itself and of those before it; `journal_reading` goes by it.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remesh.data.durable import DISK, Disk
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import Announced, Opened, Remembered
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
from remesh.orchestrator.control.words.sealed_lines import sealed

FOLDER = "journal"


class JournalWriter:
    """Lines reach the operating system before the event is handled: a killed controller loses none.
    They reach the disk by `sync`: a power cut may lose those since then.

    Announcements stay in memory too, as what a poll returns; there are few of them.
    """

    def __init__(
        self,
        run_folder: Path,
        incarnation: int,
        options: Options,
        continued: "Journal | None" = None,
        disk: Disk = DISK,
    ) -> None:
        path = journal_path(run_folder, incarnation)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        earlier = continued.announcements() if continued else ()
        self.announcements: list[str] = [entry["text"] for entry in earlier]
        self._disk = disk
        self._file = path.open("ab")
        self._lock = threading.Lock()
        self._sum = continued.sum if continued else 0
        opened = Opened(
            options=options,
            number=incarnation,
            start=continued.incarnation if continued else incarnation,
            continues=len(continued.lines) if continued else None,
        )
        self._line(journal.encode_opened(opened))
        for folder in (path.parent, run_folder):
            disk.sync_folder(folder)

    def event(self, event: Event, now_s: float) -> None:
        self._line(journal.encode(event, now_s))

    def announcement(self, text: str, now_s: float) -> None:
        self.ending(text, now_s)
        self.announcements.append(text)

    def ending(self, text: str, now_s: float) -> None:
        """The last word, which a poll returns as the run's reason and not as an announcement."""
        self._line(journal.encode(Announced(text=text), now_s))

    def snapshot(self, values: Any, now_s: float) -> None:
        """Where a controller that takes over begins to replay, after all events so far."""
        self._line(journal.encode(Remembered(values=values), now_s))

    def sync(self) -> None:
        """All that was written so far outlives a power cut."""
        with self._lock:
            self._disk.sync(self._file)

    def _line(self, line: str) -> None:
        with self._lock:
            text, self._sum = sealed(line, self._sum)
            self._file.write(text.encode() + b"\n")
            self._file.flush()


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

    `sum` is that of all lines. With `damage` there may have been more of them than are proven.
    """

    incarnation: int
    options: Options
    lines: tuple[str, ...]
    sum: int = 0
    damage: Damage | None = None

    def replay(self) -> Controller:
        return journal.replay(self.lines, self.options)

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
        machine = Controller(self.options)
        found: dict[str, WorkerLost | WorkerErred] = {}
        for event, now_s in journal.read(self.lines):
            if isinstance(event, WorkerLost | WorkerErred) and machine.state.phase not in ENDED:
                found.setdefault(event.worker, event)
            machine.handle(event, now_s)
        return found

    def nodes(self) -> set[str]:
        """Every node that has ever joined."""
        joined = journal.read(self._lines_of(NodeJoined))
        return {event.node for event, _ in joined if isinstance(event, NodeJoined)}

    def snapshot(self) -> tuple[int, Any] | None:
        """The index of the newest line that holds one, with its values."""
        for index in range(len(self.lines) - 1, -1, -1):
            if journal.says(self.lines[index], Remembered):
                told = journal.decode(self.lines[index]).told
                if isinstance(told, Remembered):
                    return index, told.values
        return None

    def committed(self) -> CheckpointState | None:
        """The newest checkpoint that this start has made or found, None if there was none."""
        made = journal.read(self._lines_of(CheckpointCommitted))
        names = [event for event, _ in made if isinstance(event, CheckpointCommitted)]
        if names:
            return CheckpointState(step=names[-1].step, name=names[-1].name)
        found = self.options.resume
        return found if isinstance(found, CheckpointState) else None

    def after(self, line: int) -> "Journal":
        return replace(self, lines=self.lines[line + 1 :])

    def newest_s(self) -> float:
        """The moment of the newest line, 0 if there is none."""
        return journal.decode(self.lines[-1]).at_s if self.lines else 0.0

    def _lines_of(self, *kinds: type[Any]) -> Iterator[str]:
        return (line for line in self.lines if any(journal.says(line, kind) for kind in kinds))


def cause_of(event: WorkerLost | WorkerErred) -> str:
    return event.cause if isinstance(event, WorkerLost) else event.error


def journal_path(run_folder: Path, number: int) -> Path:
    return run_folder / FOLDER / f"{number:06d}.jsonl"
