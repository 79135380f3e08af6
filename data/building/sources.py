"""The files that a dataset is built from, in an order that every machine agrees on."""

import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from remesh.data.building.file_forms import SUFFIXES, checked_endings, cure_of, ending_of, is_read
from remesh.data.data_error import DataError

STDLIB = "python-stdlib"

_NOT_STDLIB = {"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"}
_NO_TEXT = {"__pycache__"}
_OF_THE_VOLUME = "lost+found"  # made by mkfs, for root alone
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A file or folder of a source that is not read."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path} ({self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files in the order in which their documents are read. `size_bytes` is what they take up."""

    name: str
    files: tuple[Path, ...]
    size_bytes: int
    left_out: tuple[LeftOut, ...] = ()

    def __str__(self) -> str:
        """What is read, and what is not and why."""
        files = f"{len(self.files):,} file{'s' * (len(self.files) != 1)}"
        return f"reading {files}, {self.size_bytes:,} bytes{_told(self.left_out)}"


def find_source(name: str, also: tuple[str, ...] = ()) -> Source:
    """The Python standard library's own .py files, a folder of text files, or one file.

    `also` are endings of text files besides those that are known.
    Raises: DataError if there is nothing to read, with what there is instead.
    """
    endings = checked_endings(also)
    left_out: tuple[LeftOut, ...] = ()
    if name == STDLIB:
        files = _stdlib(Path(sysconfig.get_path("stdlib")))
    elif not name:
        raise DataError(f'no source: give a folder, a file, or "{STDLIB}"')
    elif (path := Path(name)).is_dir():
        walk = _Walk(path, endings)
        files, left_out = walk.files(), walk.left_out()
        if not files:
            raise _no_text(name, left_out)
    elif not path.is_file():
        raise DataError(f'no source {name}: give a folder, a file, or "{STDLIB}"')
    elif not is_read(path.name, endings):
        raise DataError(f"{name}: {_not_read(path.name)}; {cure_of(path.name)}")
    else:
        files = [path]
    size_bytes = sum(_size(file) for file in files)
    return Source(name=name, files=tuple(files), size_bytes=size_bytes, left_out=left_out)


class _Walk:
    """All that lies in a folder, linked folders included, each folder once.

    Links are followed when everything real has been seen, so that a link to a part of the source
    changes neither its files nor their order.
    """

    def __init__(self, root: Path, also: tuple[str, ...]) -> None:
        self._root = root
        self._also = also
        self._found: list[Path] = []
        self._left_out: list[LeftOut] = []
        self._seen: set[tuple[int, int]] = set()
        links = self._walked(root)
        while links:
            links += self._walked(links.pop(0))

    def files(self) -> list[Path]:
        return sorted(self._found, key=lambda file: file.relative_to(self._root).parts)

    def left_out(self) -> tuple[LeftOut, ...]:
        return tuple(sorted(self._left_out, key=lambda one: one.path))

    def _walked(self, top: Path) -> list[Path]:
        """The linked folders found in one and below."""
        links = []
        for folder, folders, names in os.walk(top, onerror=_refuse_unreadable):
            here = Path(folder)
            if _identity(here) in self._seen:
                self._leave_out(here, "read already under another name")
                folders.clear()
                continue
            self._seen.add(_identity(here))
            folders[:] = [name for name in sorted(folders) if self._is_entered(here / name)]
            links += [here / name for name in folders if (here / name).is_symlink()]
            for name in names:
                self._see(here / name)
        return links

    def _is_entered(self, folder: Path) -> bool:
        if folder.name == _OF_THE_VOLUME:
            self._leave_out(folder, "the volume's own")
        elif folder.name.startswith("."):
            self._leave_out(folder, "hidden")
        else:
            return folder.name not in _NO_TEXT
        return False

    def _see(self, file: Path) -> None:
        if file.name.startswith("."):
            self._leave_out(file, "hidden")
        elif not file.is_file():
            self._leave_out(file, "a link to nothing" if file.is_symlink() else "no regular file")
        elif is_read(file.name, self._also):
            self._found.append(file)
        else:
            self._leave_out(file, _not_read(file.name))

    def _leave_out(self, path: Path, why: str) -> None:
        shown = os.fsencode(path.relative_to(self._root)).decode(errors="replace")
        self._left_out.append(LeftOut(path=shown, why=why))


def _stdlib(root: Path) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(root, onerror=_refuse_unreadable):
        folders[:] = [name for name in folders if name not in _NOT_STDLIB and name[0] != "."]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    visible = [file for file in found if file.name[0] != "." and file.is_file()]
    return sorted(visible, key=lambda file: file.relative_to(root).parts)


def _no_text(name: str, left_out: tuple[LeftOut, ...]) -> DataError:
    others = [one.path for one in left_out if one.why == _not_read(one.path)]
    cure = f"; {cure_of(others[0])}" if others else ""
    return DataError(
        f"no text in {name}: there is no file with {', '.join(SUFFIXES)}{_told(left_out)}{cure}"
    )


def _told(left_out: Iterable[LeftOut]) -> str:
    shown = [str(one) for one in left_out]
    if not shown:
        return ""
    more = f" and {len(shown) - _MAX_SHOWN:,} more" if len(shown) > _MAX_SHOWN else ""
    return f"; left out {len(shown):,}: {', '.join(shown[:_MAX_SHOWN])}{more}"


def _not_read(name: str) -> str:
    ending = ending_of(name)
    return f"{ending} is not read" if ending else "its name has no ending"


def _identity(folder: Path) -> tuple[int, int]:
    try:
        status = folder.stat()
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}") from None
    return status.st_dev, status.st_ino


def _refuse_unreadable(error: OSError) -> None:
    raise DataError(f"cannot read {error.filename}: {error.strerror}") from None


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None
