"""The journals of a run on disk: one file of JSON lines for each life of its controller.

A controller that takes over from a dead one continues its journal in a file of its own, whose first
line says how many lines came before: what the dead one may still write beyond them counts for
nobody.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.journal import Announced, Opened, Remembered
from remesh.orchestrator.control.words.events import CheckpointCommitted, Event, NodeJoined
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.records import CheckpointState

FOLDER = "journal"


class JournalWriter:
    """Lines reach the operating system before the event is handled: a killed controller loses none.

    Announcements stay in memory too, as what a poll returns; there are few of them.
    """

    def __init__(
        self,
        run_folder: Path,
        incarnation: int,
        options: Options,
        continued: "Journal | None" = None,
    ) -> None:
        path = _path(run_folder, incarnation)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        earlier = continued.announcements() if continued else ()
        self.announcements: list[str] = [entry["text"] for entry in earlier]
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()
        continues = len(continued.lines) if continued else None
        self._line(journal.encode_opened(Opened(options=options, continues=continues)))

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

    def _line(self, line: str) -> None:
        with self._lock:
            self._file.write(line + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One start of the run, as its files tell it; `incarnation` is its first controller's."""

    incarnation: int
    options: Options
    lines: tuple[str, ...]

    def replay(self) -> Controller:
        return journal.replay(self.lines, self.options)

    def announcements(self) -> Iterator[dict[str, Any]]:
        for entry in journal.entries(self._lines_of(Announced)):
            if isinstance(entry.told, Announced):
                yield {"at_s": entry.at_s, "text": entry.told.text}

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

    def _lines_of(self, kind: type[Any]) -> Iterator[str]:
        return (line for line in self.lines if journal.says(line, kind))


def read_journals(run_folder: Path) -> list[Journal]:
    """All starts of the run, oldest first; one killed before its first line is left out.

    Raises: RunFormatError if another version wrote one of them.
    """
    journals: list[Journal] = []
    for path in sorted((run_folder / FOLDER).glob("*.jsonl")):
        *lines, _ = path.read_text().split("\n")  # one without its end was cut short by a crash
        if not lines:
            continue
        opened, own = journal.decode_opened(lines[0], str(path)), tuple(lines[1:])
        if opened.continues is not None:
            before = journals.pop()
            journals.append(replace(before, lines=before.lines[: opened.continues] + own))
        else:
            journals.append(Journal(incarnation=int(path.stem), options=opened.options, lines=own))
    return journals


def _path(run_folder: Path, incarnation: int) -> Path:
    return run_folder / FOLDER / f"{incarnation:06d}.jsonl"
