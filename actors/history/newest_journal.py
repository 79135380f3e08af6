"""What a start has to know of those before it, from the end of the newest journal.

Each file begins with a snapshot, and has a newer one every few thousand events. What stands before
the newest is not read, however long the run is. Each line carries the sum of those before it, so
the end of a file proves itself like the whole. Where the end cannot tell, all files are read.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from remesh.actors.history.journal_files import FOLDER, Damage, Journal
from remesh.actors.history.journal_reading import NAME, History, order, read_history, read_opened
from remesh.data.regular_file import open_regular
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.journal import Opened, Remembered
from remesh.orchestrator.control.words.codec_plans import CodecError
from remesh.orchestrator.control.words.sealed_lines import sum_of, unsealed

FIRST_READ_BYTES = 1 << 20


def read_newest(run_folder: Path) -> History:
    """The newest start alone, from its newest snapshot on; all of them where that is not enough.

    Cost: the lines since the snapshot. Raises: RunFormatError if another version wrote the file.
    """
    found = _newest(run_folder)
    return History(starts=(found,)) if found else read_history(run_folder)


def _newest(run_folder: Path) -> Journal | None:
    paths = [path for path in (run_folder / FOLDER).glob("*.jsonl") if NAME.fullmatch(path.name)]
    for path in sorted(paths, key=order, reverse=True):
        try:
            with open_regular(path) as file:
                first = file.readline(FIRST_READ_BYTES)
                if not first.endswith(b"\n"):
                    continue  # killed before its first line
                opened = read_opened(first[:-1], path)
        except (OSError, ValueError):
            return None
        number = NAME.fullmatch(path.name)
        known = number is not None and opened.number == int(number[1])
        return _from_the_end(path, opened) if known else None
    return None


def _from_the_end(path: Path, opened: Opened) -> Journal | None:
    """Reads twice as much until a snapshot and what comes after it are there."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = min(FIRST_READ_BYTES, size)
        while True:
            file.seek(size - length)
            lines = file.read(length).split(b"\n")[:-1]  # a crash cuts the last one
            lines = lines if length == size else lines[1:]
            found = _LastLines(path, opened, lines).journal()
            if found or length == size:
                return found
            length = min(2 * length, size)


class _LastLines:
    """The last lines of a file, of which the first only proves the second."""

    def __init__(self, path: Path, opened: Opened, lines: Sequence[bytes]) -> None:
        self._path = path
        self._opened = opened
        self._lines = lines

    def journal(self) -> Journal | None:
        for index in range(len(self._lines) - 1, 0, -1):
            if b'"is":"Remembered"' in self._lines[index]:
                base = self._snapshot(index)
                if base is None:
                    return None
                first = index - (base.line - base.after)
                return self._since(base, first) if first >= 1 else None
        return None

    def _snapshot(self, index: int) -> Remembered | None:
        try:
            before = sum_of(self._lines[index - 1].decode())
            line, _ = unsealed(self._lines[index].decode(), before)
            told = journal.decode(line).told
        except (ValueError, CodecError, journal.JournalError):
            return None
        return told if isinstance(told, Remembered) else None

    def _since(self, base: Remembered, first: int) -> Journal:
        lines: list[str] = []
        damage: Damage | None = None
        total = sum_of(self._lines[first - 1].decode())
        for line in self._lines[first:]:
            try:
                plain, total = unsealed(line.decode(), total)
            except ValueError as error:
                what = f"is damaged ({error}); nothing from there on is proven"
                number = base.after + len(lines) - (self._opened.continues or 0) + 2
                damage = Damage(file=str(self._path), line=number, what=what)
                break
            lines.append(plain)
        return Journal(
            incarnation=self._opened.start,
            options=self._opened.options,
            lines=tuple(lines),
            sum=total,
            damage=damage,
            base=base,
            first=base.after,
        )
