"""Which files in a dataset's folder a build has made, by which the next one clears up.

A name is in the record, and the record safe on the disk, before the file of that name is made. So a
build that was killed leaves no file that is not named there, and one that follows removes exactly
these: whatever else lies in the folder is somebody else's, however it is called.
"""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from remesh.data.data_error import DataError
from remesh.data.durable import DISK, TEMPORARY
from remesh.data.manifest import MANIFEST, ROW_HASHES
from remesh.data.regular_file import read_bounded

RECORD = ".remesh-build"

_HEADER = "remesh build 1"
_MADE = re.compile(
    rf"shard-\d{{5,}}\.arrow|{re.escape(MANIFEST)}|{re.escape(ROW_HASHES)}", re.ASCII
)
_MAX_BYTES = 1 << 28


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.arrow"


class BuildRecord:
    """The record in a folder whose lock is held. Raises: OSError, DataError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / RECORD

    def add(self, name: str) -> None:
        """Note that a file is about to be made. Raises: DataError if one of that name is there."""
        for taken in (self._folder / name, self._folder / (name + TEMPORARY)):
            if os.path.lexists(taken):
                raise DataError(
                    f"{taken} is not of this build; move it away, or give another folder"
                )
        self.adopt([name])

    def adopt(self, names: Iterable[str]) -> None:
        """Note files of an earlier build as this one's."""
        begins = not os.path.lexists(self._path)
        header = [_HEADER] if begins else []
        lines = "".join(f"{line}\n" for line in (*header, *names))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._path, flags, 0o666), "ab") as file:
            file.write(lines.encode())
            DISK.sync(file)
        if begins:
            DISK.sync_folder(self._folder)

    def undo(self) -> None:
        """Remove what the record names, then the record."""
        for name in self._names():
            for made in (self._folder / name, self._folder / (name + TEMPORARY)):
                if _is_regular(made):
                    made.unlink()
        self.close()

    def close(self) -> None:
        """Remove the record: what was made is whole."""
        if self._is_ours():
            self._path.unlink()

    def _names(self) -> list[str]:
        """Without a line that was cut off, whose file cannot have been made yet."""
        if not self._is_ours():
            return []
        _, *lines = self._text().split("\n")
        return [line for line in lines[:-1] if _MADE.fullmatch(line)]

    def _is_ours(self) -> bool:
        return os.path.lexists(self._path) and self._text().startswith(f"{_HEADER}\n")

    def _text(self) -> str:
        return read_bounded(self._path, _MAX_BYTES).decode(errors="replace")


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False
