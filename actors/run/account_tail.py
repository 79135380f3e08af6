"""The account of a run, folded as its journals grow by the command that drives it.

A report of a million steps then takes no longer than one of a hundred: what was trained is
compared when it is told, a little at a time, and not once more at the end. This is only a shorter
way to what `report_of` says: of anything out of the ordinary (a damaged line, lines that a later
controller does not count, an event that could not be handled) it makes nothing, and all journals
are read at last. What lost: to keep the fold in a file beside the journal, which would be one more
that can be damaged.
"""

from pathlib import Path
from typing import Any, get_args

from remesh.actors.history.journal_files import FOLDER
from remesh.actors.history.journal_reading import NAME, order, read_opened
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.run_report import RunAccount, as_report
from remesh.data.regular_file import open_regular
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.journal import SetAside
from remesh.orchestrator.control.words.events import Event
from remesh.orchestrator.control.words.sealed_lines import unsealed
from remesh.orchestrator.job.job import Job

READ_BYTES = 1 << 20  # at once, of which a fold takes a fifth of a second

_EVENTS = get_args(Event)


class _UnusualError(Exception):
    """Something that only a reader of whole journals can judge."""


class AccountTail:
    """`num_lines` have been taken in so far, of all files together."""

    def __init__(self, folder: RunFolder, job: Job, *, read_bytes: int = READ_BYTES) -> None:
        self._folder = folder
        self._job = job
        self._read_bytes = read_bytes
        self._account: RunAccount | None = None
        self._is_usual = True
        self._file: Path | None = None
        self._offset = 0
        self._sum = 0
        self.num_lines = 0

    @property
    def num_bytes(self) -> int:
        """What the steps so far take of memory."""
        return self._account.num_bytes if self._account else 0

    def read_on(self) -> bool:
        """Take in a little of what is new. False if there was nothing, or if it is no use."""
        if not self._is_usual:
            return False
        before = self._file, self._offset
        self._is_usual = False  # whatever cuts it short, a signal too
        try:
            for line in self._new_lines():
                self._take(line)
        except Exception:  # noqa: BLE001 - who reads all says what is wrong
            return False
        self._is_usual = True
        return (self._file, self._offset) != before

    def report(self, status: str) -> dict[str, Any] | None:
        """That of all that there is now; None if only the whole journals can tell. Asked once."""
        while self.read_on():
            pass
        account, usual = self._account, self._is_usual
        self._is_usual = False
        if account is None or not usual:
            return None
        return as_report(account, self._folder, status=status)

    def _new_lines(self) -> list[bytes]:
        """Whole lines of the file that is read, or of the one after it; none if there are none."""
        lines = self._read() if self._file else []
        if not lines and (following := self._following()):
            self._file, self._offset = following, 0
            lines = self._read()
        return lines

    def _following(self) -> Path | None:
        paths = list((self._folder.path / FOLDER).glob("*.jsonl"))
        if not all(NAME.fullmatch(path.name) for path in paths):
            raise _UnusualError
        later = (path for path in paths if not self._file or order(path) > order(self._file))
        return min(later, key=order, default=None)

    def _read(self) -> list[bytes]:
        assert self._file is not None
        length = self._read_bytes
        with open_regular(self._file) as file:
            while True:
                file.seek(self._offset)
                found = file.read(length)
                *lines, rest = found.split(b"\n")
                if lines or len(found) < length:
                    break
                length *= 2
        if lines and self._offset == 0:
            self._open(lines.pop(0), self._file)
        self._offset += len(found) - len(rest)
        return lines

    def _open(self, line: bytes, path: Path) -> None:
        """The first line of a file: another start begins, or another controller goes on with it."""
        opened, name = read_opened(line, path), NAME.fullmatch(path.name)
        if name is None or opened.number != int(name[1]):
            raise _UnusualError
        if opened.continues is None:
            self._account = self._account or RunAccount(self._job)
            self._account.begin(opened.options)
            self._sum = 0
        # Of a controller that goes on from other lines than these the sum does not fit.
        _, self._sum = unsealed(line.decode(), self._sum)

    def _take(self, line: bytes) -> None:
        plain, self._sum = unsealed(line.decode(), self._sum)
        self.num_lines += 1
        assert self._account is not None, "a file begins with a start"
        for entry in journal.entries([plain]):
            if isinstance(entry.told, SetAside):
                raise _UnusualError
            if isinstance(entry.told, _EVENTS):
                self._account.handle(entry.told, entry.at_s)
