"""The text that a dataset is built from, read in an order that every machine agrees on."""

import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from remesh.data.data_error import DataError

STDLIB = "python-stdlib"
SEPARATOR = b"\0"
SUFFIXES = (".jsonl", ".md", ".py", ".rst", ".txt")

_PIECE_BYTES = 1 << 20
_NOT_STDLIB = {"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files in the order in which their documents are read."""

    name: str
    files: tuple[Path, ...]
    size_bytes: int


def find_source(name: str) -> Source:
    """The Python standard library's own .py files, a folder of text files, or one file.

    Raises: DataError if there is nothing to read.
    """
    if name == STDLIB:
        files = _walk(Path(sysconfig.get_path("stdlib")), (".py",), _NOT_STDLIB)
    elif not name:
        raise DataError(f'no source: give a folder, a file, or "{STDLIB}"')
    elif (path := Path(name)).is_dir():
        files = _walk(path, SUFFIXES, {"__pycache__"})
        if not files:
            raise DataError(f"no text in {name}: there is no file with {', '.join(SUFFIXES)}")
    elif path.is_file():
        files = [path]
    else:
        raise DataError(f'no source {name}: give a folder, a file, or "{STDLIB}"')
    return Source(name=name, files=tuple(files), size_bytes=sum(_size(file) for file in files))


def read_pieces(file: Path) -> Iterator[bytes]:
    """The documents of a file in pieces of bounded size, a zero byte behind each document.

    A zero byte inside a text would read as a boundary and becomes a space. Empty documents vanish.
    """
    try:
        with file.open("rb") as stream:
            yield from _lines(stream, file) if file.suffix == ".jsonl" else _whole(stream)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None


def _whole(stream: BinaryIO) -> Iterator[bytes]:
    empty = True
    while piece := stream.read(_PIECE_BYTES):
        empty = False
        yield piece.replace(SEPARATOR, b" ")
    if not empty:
        yield SEPARATOR


def _lines(stream: BinaryIO, file: Path) -> Iterator[bytes]:
    for number, line in enumerate(stream, start=1):
        if text := _text_of(line, file, number):
            yield text.replace(SEPARATOR, b" ") + SEPARATOR


def _text_of(line: bytes, file: Path, number: int) -> bytes:
    if not line.strip():
        return b""
    try:
        text = json.loads(line)["text"]
        return str.encode(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(
            f'{file}, line {number}: expected a JSON object with a string "text"'
        ) from None


def _walk(root: Path, suffixes: tuple[str, ...], left_out: set[str]) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(root, onerror=_refuse_unreadable):
        folders[:] = [name for name in folders if name not in left_out and name[0] != "."]
        found += [Path(folder, name) for name in names if name.endswith(suffixes)]
    visible = [file for file in found if file.name[0] != "." and file.is_file()]
    return sorted(visible, key=lambda file: file.relative_to(root).parts)


def _refuse_unreadable(error: OSError) -> None:
    raise DataError(f"cannot read {error.filename}: {error.strerror}") from None


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None
