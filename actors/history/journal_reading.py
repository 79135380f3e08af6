"""The journals of a run, read as far as they prove themselves.

Damage ends no reading: what stands before it is proven by the sums of the lines, and what stands
behind it is left out and told. A run is taken up at its checkpoints, which need no journal.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remesh.actors.history.journal_files import FOLDER, Damage, Journal, journal_path
from remesh.data.regular_file import read_bounded
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.journal import Opened
from remesh.orchestrator.control.words.run_format import RUN_FORMAT
from remesh.orchestrator.control.words.sealed_lines import KEY, unsealed
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count
from remesh.parallel.state.bounded_json import FORMAT_KEY, brief, parse

NAME = re.compile(r"(\d{6,18})\.jsonl", re.ASCII)
_MAX_BYTES = 1 << 36
_MAX_OPENED_BYTES, _MAX_OPENED_VALUES = 1 << 24, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The starts of a run, oldest first; one killed before its first line is left out.

    `strays` are files that belong to none of them.
    """

    starts: tuple[Journal, ...]
    strays: tuple[Damage, ...] = ()

    @property
    def damage(self) -> tuple[Damage, ...]:
        found = (start.damage for start in self.starts)
        return (*(damage for damage in found if damage is not None), *self.strays)


def read_history(run_folder: Path) -> History:
    """Cost: every byte. Raises: RunFormatError if another version wrote one of them."""
    reader = _Reader(run_folder=run_folder)
    for path in sorted((run_folder / FOLDER).glob("*.jsonl"), key=order):
        reader.read(path)
    starts = tuple(start.journal() for start in reader.starts)
    return History(starts=starts, strays=tuple(reader.strays))


def history_of(run_folder: Path) -> History:
    """Likewise, of a run that is there. Raises: UserError if no start of it can be read,
    PermissionError if nobody may look.
    """
    history = read_history(run_folder)
    if history.starts:
        return history
    if history.strays:
        raise UserError(f"{history.strays[0]}; the same remesh run resumes at the last checkpoint")
    with suppress(FileNotFoundError, NotADirectoryError):
        next((run_folder / FOLDER).iterdir(), None)  # a glob finds nothing where it may not look
    raise UserError(f"{run_folder}: there is no run here; start one with: remesh run JOB")


@dataclass(slots=True, kw_only=True)
class _Start:
    """`sums[n]` is that of the first n lines; there is always one more than there are lines."""

    opened: Opened
    lines: list[str] = field(default_factory=list)
    sums: list[int] = field(default_factory=lambda: [0])
    damage: Damage | None = None

    def take(self, path: Path, lines: list[bytes]) -> None:
        """The lines of a file, of which the first has opened it."""
        total = self.sums.pop()
        for index, line in enumerate(lines):
            try:
                plain, total = unsealed(line.decode(), total)
            except ValueError as error:
                what = f"is damaged ({error}); nothing from there on is proven"
                self.damage = Damage(file=str(path), line=index + 1, what=what)
                break
            self.sums.append(total)
            if index:
                self.lines.append(plain)
        if len(self.sums) == len(self.lines):
            self.sums.append(total)

    def cut(self, num_lines: int) -> None:
        """Only so many of them count."""
        del self.lines[num_lines:], self.sums[num_lines + 1 :]
        self.damage = None

    def journal(self) -> Journal:
        return Journal(
            incarnation=self.opened.start,
            options=self.opened.options,
            lines=tuple(self.lines),
            sum=self.sums[-1],
            damage=self.damage,
        )


@dataclass(slots=True, kw_only=True)
class _Reader:
    run_folder: Path
    starts: list[_Start] = field(default_factory=list)
    strays: list[Damage] = field(default_factory=list)

    def read(self, path: Path) -> None:
        """Take in one file after the other, in the order of their numbers."""
        number = NAME.fullmatch(path.name)
        if number is None:
            self._stray(path, "has no name of a journal; remove it")
            return
        try:
            *lines, _ = read_bounded(path, _MAX_BYTES).split(b"\n")  # a crash cuts the last one
        except OSError as error:
            self._stray(path, f"cannot be read: {error.strerror}")
            return
        if lines:
            self._segment(path, int(number[1]), lines)

    def _segment(self, path: Path, number: int, lines: list[bytes]) -> None:
        try:
            opened = read_opened(lines[0], path)
        except ValueError as error:
            self._stray(path, f"is damaged ({brief(error)}); nothing in the file is proven", 1)
            return
        if opened.number != number:
            name = journal_path(self.run_folder, opened.number).name
            self._stray(path, f"was written as {name}; remove this copy", 1)
        elif opened.continues is None:
            self._begin(opened, path, lines)
        else:
            self._continue(opened, opened.continues, path, lines)

    def _begin(self, opened: Opened, path: Path, lines: list[bytes]) -> None:
        start = _Start(opened=opened)
        start.take(path, lines)
        if start.damage and start.damage.line == 1:
            self.strays.append(start.damage)
        else:
            self.starts.append(start)

    def _continue(self, opened: Opened, num_lines: int, path: Path, lines: list[bytes]) -> None:
        start = self.starts[-1] if self.starts else None
        if start is None or start.opened.start != opened.start:
            name = journal_path(self.run_folder, opened.start).name
            self._stray(path, f"continues {name}, which is missing or damaged", 1)
        elif num_lines < len(start.sums):
            start.cut(num_lines)
            start.take(path, lines)
        elif start.damage is None:
            what = f"continues after {count(num_lines, 'line')}, and {len(start.lines)} are there"
            start.damage = Damage(file=str(path), line=1, what=what)

    def _stray(self, path: Path, what: str, line: int | None = None) -> None:
        self.strays.append(Damage(file=str(path), line=line, what=what))


def read_opened(line: bytes, path: Path) -> Opened:
    """What a first line says; whether it proves itself, only the line before it shows.

    Raises: ValueError; RunFormatError if another version wrote it.
    """
    values = parse(line, max_bytes=_MAX_OPENED_BYTES, max_values=_MAX_OPENED_VALUES)
    if not isinstance(values, dict) or not values:
        raise ValueError("it is no JSON object")
    if _is_changed(values, line):
        raise ValueError(f"its {FORMAT_KEY} has changed")
    values.pop(KEY, None)
    return journal.decode_opened(values, str(path))


def _is_changed(values: dict[str, Any], line: bytes) -> bool:
    """Whether a line that seems to be of another version was one of this version."""
    if values.get(FORMAT_KEY) == RUN_FORMAT or KEY not in values:
        return False
    try:
        unsealed(line.decode())
    except ValueError:
        return True
    return False


def order(path: Path) -> tuple[int, str]:
    name = NAME.fullmatch(path.name)
    return (int(name[1]) if name else 0, path.name)
