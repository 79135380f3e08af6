"""Writes the journal of one life of a controller.

A line reaches the operating system before the event is handled: a killed controller loses none. It
reaches the disk by `sync`: a power cut may lose the lines since then.

A disk without room ends no training: lines wait in memory until there is some, which is said, and
nothing is committed meanwhile, since `sync` fails.
"""

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remesh.actors.history.journal_files import Journal, journal_path
from remesh.data.durable import DISK, Disk
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.journal import (
    Announced,
    LinePlace,
    Opened,
    Remembered,
    SetAside,
)
from remesh.orchestrator.control.words.events import Event, NodeJoined
from remesh.orchestrator.control.words.options import Options
from remesh.orchestrator.control.words.sealed_lines import sealed

MOST_WAITING_BYTES = 1 << 26
MOST_SAID = 200  # announcements that a snapshot repeats

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class JournalWriter:
    """Announcements stay in memory too, as what a poll returns; there are few of them.

    `num_lines` counts those of the start so far, the files before this one included.
    """

    def __init__(
        self,
        run_folder: Path,
        incarnation: int,
        options: Options,
        continued: Journal | None = None,
        disk: Disk = DISK,
    ) -> None:
        path = journal_path(run_folder, incarnation)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.start = continued.incarnation if continued else incarnation
        self.incarnation = incarnation
        self.num_lines = continued.num_lines if continued else 0
        self._num_left_out, self.announcements = continued.said() if continued else (0, [])
        self._nodes = continued.nodes() if continued else set[str]()
        self._disk = disk
        self._file = path.open("ab", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size
        self._waiting = bytearray()
        self._lock = threading.Lock()
        self._sum = continued.sum if continued else 0
        opened = Opened(
            options=options,
            number=incarnation,
            start=self.start,
            continues=self.num_lines if continued else None,
        )
        self._add(journal.encode_opened(opened))
        self._write_waiting()
        for folder in (path.parent, run_folder):
            disk.sync_folder(folder)

    def event(self, event: Event, now_s: float) -> LinePlace:
        """Where it stands. Raises: OSError."""
        return self.events([event], now_s)[0]

    def events(self, events: Sequence[Event], now_s: float) -> list[LinePlace]:
        """Where they stand, one after the other: those of one kind in one line, all in one write.

        Raises: OSError.
        """
        self._nodes.update(event.node for event in events if isinstance(event, NodeJoined))
        encoded = list(journal.encode_all(events, now_s))
        first = self._write([line for line, _ in encoded], now_s)
        lengths = enumerate((length for _, length in encoded), first)
        return [LinePlace(line, nth) for line, length in lengths for nth in range(length)]

    def announcement(self, text: str, now_s: float) -> None:
        self.ending(text, now_s)
        self.announcements.append(text)

    def announced(self, seen: int) -> tuple[str, ...]:
        """Those after the first `seen`, as far as they are remembered."""
        return tuple(self.announcements[max(seen - self._num_left_out, 0) :])

    def ending(self, text: str, now_s: float) -> None:
        """The last word, which a poll returns as the run's reason and not as an announcement."""
        self._write([journal.encode(Announced(text=text), now_s)], now_s)

    def set_aside(self, place: LinePlace, error: str, now_s: float) -> None:
        """The event at that place could not be handled."""
        aside = SetAside(line=place.line, nth=place.nth, error=error)
        self._write([journal.encode(aside, now_s)], now_s)

    def snapshot(self, values: Any, now_s: float, after: int | None = None) -> None:
        """Where a controller that takes over begins to replay: behind the line `after`, or all."""
        encoded = journal.encode_values(values)  # without the lock, as there may be many
        with self._lock:
            there = Remembered(
                after=self.num_lines if after is None else after + 1,
                line=self.num_lines,
                announced=self._num_left_out + len(self.announcements),
                said=tuple(self.announcements[-MOST_SAID:]),
                nodes=tuple(sorted(self._nodes)),
                values=None,
            )
            self._put([journal.encode_remembered(there, encoded, now_s)])

    @property
    def num_bytes(self) -> int:
        """Of this file, with what has no room in it yet."""
        return self._size + len(self._waiting)

    def sync(self) -> None:
        """All that was written so far outlives a power cut. Raises: OSError."""
        with self._lock:
            self._write_waiting()
            self._disk.sync(self._file)

    def bytes_from(self, offset: int, most: int) -> bytes:
        """Of the file, with what has no room in it yet."""
        with self._lock:
            waiting, size = bytes(self._waiting), self._size
        with self.path.open("rb") as file:
            file.seek(min(offset, size))
            found = file.read(min(most, max(size - offset, 0)))
        return (found + waiting[max(offset - size, 0) :])[:most]

    def _write(self, lines: Sequence[str], now_s: float) -> int:
        """The number of the first of them."""
        with self._lock:
            was_full = bool(self._waiting)
            number = self._put(lines)
            if self._waiting and not was_full:
                text = (
                    f"there is no room for the run's journal, {self.path}; training goes on, and "
                    f"nothing is saved until there is some"
                )
                self.announcements.append(text)
                self._put([journal.encode(Announced(text=text), now_s)])
            return number

    def _put(self, lines: Sequence[str]) -> int:
        number = self.num_lines
        for line in lines:
            self._add(line)
        self.num_lines += len(lines)
        try:
            self._write_waiting()
        except OSError as error:
            if error.errno not in _NO_ROOM or len(self._waiting) > MOST_WAITING_BYTES:
                raise
        return number

    def _add(self, line: str) -> None:
        text, self._sum = sealed(line, self._sum)
        self._waiting += text.encode() + b"\n"

    def _write_waiting(self) -> None:
        while self._waiting:
            written = self._disk.append(self._file, self._waiting)
            self._size += written
            del self._waiting[:written]
