"""The journals of a run on disk: one file of JSON lines for each life of its controller.

The first line holds the options that the machine was started with, so that a journal can be
replayed without the job file. Announcements stand between the events that led to them. A
controller that takes over from a dead one continues its journal in a file of its own, which says
how many lines came before: what the dead one may still write beyond them counts for nobody.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from remesh.orchestrator.control import journal
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.events import Event, NodeJoined
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.records import CheckpointState, FreshState
from remesh.orchestrator.plan.ladder import Ladder

FOLDER = "journal"
OPENED = "RunOpened"
CONTINUES = "continues"
SNAPSHOT = "Snapshot"
ANNOUNCED = "Announced"


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
        opened = {"at_s": 0.0, "event": OPENED, "options": asdict(options)}
        self._write({**opened, CONTINUES: len(continued.lines)} if continued else opened)

    def event(self, event: Event, now_s: float) -> None:
        self._line(journal.encode(event, now_s))

    def announcement(self, text: str, now_s: float) -> None:
        self.ending(text, now_s)
        self.announcements.append(text)

    def ending(self, text: str, now_s: float) -> None:
        """The last word, which a poll returns as the run's reason and not as an announcement."""
        self._write({"at_s": now_s, "event": ANNOUNCED, "text": text})

    def snapshot(self, values: Any, now_s: float) -> None:
        """Where a controller that takes over begins to replay, after all events so far."""
        self._write({"at_s": now_s, "event": SNAPSHOT, "values": values})

    def _write(self, entry: dict[str, Any]) -> None:
        self._line(json.dumps(entry, separators=(",", ":")))

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
        for entry in self._entries(ANNOUNCED):
            yield {"at_s": entry["at_s"], "text": entry["text"]}

    def nodes(self) -> set[str]:
        """Every node that has ever joined."""
        return {entry["node"] for entry in self._entries(NodeJoined.__name__)}

    def snapshot(self) -> tuple[int, Any] | None:
        """The index of the newest line that holds one, with its values."""
        for index in range(len(self.lines) - 1, -1, -1):
            if f'"event":"{SNAPSHOT}"' in self.lines[index]:
                return index, json.loads(self.lines[index])["values"]
        return None

    def after(self, line: int) -> "Journal":
        return replace(self, lines=self.lines[line + 1 :])

    def newest_s(self) -> float:
        """The moment of the newest line, 0 if there is none."""
        return float(json.loads(self.lines[-1])["at_s"]) if self.lines else 0.0

    def _entries(self, kind: str) -> Iterator[dict[str, Any]]:
        for line in self.lines:
            if f'"event":"{kind}"' in line:
                yield json.loads(line)


def read_journals(run_folder: Path) -> list[Journal]:
    """All starts of the run, oldest first; one killed before its first line is left out."""
    journals: list[Journal] = []
    for path in sorted((run_folder / FOLDER).glob("*.jsonl")):
        *lines, _ = path.read_text().split("\n")  # one without its end was cut short by a crash
        if not lines:
            continue
        opened, own = json.loads(lines[0]), tuple(lines[1:])
        if CONTINUES in opened:
            before = journals.pop()
            journals.append(replace(before, lines=before.lines[: opened[CONTINUES]] + own))
        else:
            options = _options(opened["options"])
            journals.append(Journal(incarnation=int(path.stem), options=options, lines=own))
    return journals


def _options(values: dict[str, Any]) -> Options:
    resume = values["resume"]
    return Options(
        **{
            **values,
            "ladder": journal.build(Ladder, values["ladder"]),
            "resume": CheckpointState(**resume) if resume else FreshState(),
            "fallbacks": tuple(CheckpointState(**state) for state in values["fallbacks"]),
        }
    )


def _path(run_folder: Path, incarnation: int) -> Path:
    return run_folder / FOLDER / f"{incarnation:06d}.jsonl"
