"""The journals of a run on disk: one file of JSON lines for each start of its controller.

The first line holds the options that the machine was started with, so that a journal can be
replayed without the job file. Announcements stand between the events that led to them.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.events import Event
from remesh.orchestrator.control.options import Options
from remesh.orchestrator.control.records import CheckpointState, FreshState

FOLDER = "journal"
OPENED = "RunOpened"
ANNOUNCED = "Announced"


class JournalWriter:
    """Lines reach the operating system before the event is handled: a killed controller loses none.

    Announcements stay in memory too, as what a poll returns; there are few of them.
    """

    def __init__(self, run_folder: Path, incarnation: int, options: Options) -> None:
        path = _path(run_folder, incarnation)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.announcements: list[str] = []
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()
        self._write({"at_s": 0.0, "event": OPENED, "options": asdict(options)})

    def event(self, event: Event, now_s: float) -> None:
        self._line(journal.encode(event, now_s))

    def announcement(self, text: str, now_s: float) -> None:
        self.ending(text, now_s)
        self.announcements.append(text)

    def ending(self, text: str, now_s: float) -> None:
        """The last word, which a poll returns as the run's reason and not as an announcement."""
        self._write({"at_s": now_s, "event": ANNOUNCED, "text": text})

    def _write(self, entry: dict[str, Any]) -> None:
        self._line(json.dumps(entry, separators=(",", ":")))

    def _line(self, line: str) -> None:
        with self._lock:
            self._file.write(line + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One start of the run, as its file tells it."""

    options: Options
    lines: tuple[str, ...]

    def replay(self) -> Controller:
        return journal.replay(self.lines, self.options)

    def announcements(self) -> Iterator[dict[str, Any]]:
        for line in self.lines:
            if f'"event":"{ANNOUNCED}"' in line:
                entry = json.loads(line)
                yield {"at_s": entry["at_s"], "text": entry["text"]}


def read_journals(run_folder: Path) -> list[Journal]:
    """All starts of the run, oldest first; one killed before its first line is left out."""
    paths = sorted((run_folder / FOLDER).glob("*.jsonl"))
    return [found for path in paths if (found := _read(path))]


def _read(path: Path) -> Journal | None:
    """A line without its end was cut short by a crash, or is being written: it is left out."""
    *lines, _ = path.read_text().split("\n")
    if not lines:
        return None
    return Journal(options=_options(json.loads(lines[0])["options"]), lines=tuple(lines[1:]))


def _options(values: dict[str, Any]) -> Options:
    resume = values["resume"]
    return Options(
        **{
            **values,
            "resume": CheckpointState(**resume) if resume else FreshState(),
            "fallbacks": tuple(CheckpointState(**state) for state in values["fallbacks"]),
        }
    )


def _path(run_folder: Path, incarnation: int) -> Path:
    return run_folder / FOLDER / f"{incarnation:06d}.jsonl"
