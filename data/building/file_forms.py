"""What a file holds, by its name and by its first bytes: text that is read, or what else to do.

A token is a byte, so anything at all could be trained on: a gzip file as well as a book. Whatever
is not known to be text is therefore refused by name, with what makes text of it.
"""

import bz2
import gzip
import lzma
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import IO, Any, BinaryIO

from remesh.data.data_error import DataError

JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".jsonl", ".md", ".ndjson", ".py", ".rst", ".txt")

_OPENERS: Mapping[str, Any] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
_AS_LINES = 'write it as JSON lines, one {"text": "..."} a line, into a file that ends in .jsonl'
_UNPACK = "unpack it, and give the folder"
_TO_UTF_8 = "write it as UTF-8, for example with: iconv -t UTF-8 -f"
_CURES = {
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".orc", ".avro", ".xlsx"), _AS_LINES),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), _UNPACK),
    **dict.fromkeys((".zst", ".zstd"), "unpack it with: zstd -d"),
    ".lz4": "unpack it with: lz4 -d",
    ".pdf": "extract its text",
}
_ALSO_LINES = (".json", ".csv", ".tsv")  # text, though not as it should be read

# First bytes, what they are of, and the cure. UTF-32 stands before UTF-16, which begins alike.
_MAGIC = (
    (b"\x1f\x8b", "gzip", "let its name end in .gz, so that it is unpacked"),
    (b"BZh91AY", "bzip2", "let its name end in .bz2, so that it is unpacked"),
    (b"\xfd7zXZ\0", "xz", "let its name end in .xz, so that it is unpacked"),
    (b"\x28\xb5\x2f\xfd", "zstd", _CURES[".zst"]),
    (b"\x04\x22\x4d\x18", "lz4", _CURES[".lz4"]),
    (b"PK\x03\x04", "zip", _UNPACK),
    (b"PAR1\x15", "Parquet", _AS_LINES),
    (b"ARROW1\0\0", "Arrow", _AS_LINES),
    (b"%PDF-", "PDF", _CURES[".pdf"]),
    (b"\xff\xfe\0\0", "UTF-32", f"{_TO_UTF_8} UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32", f"{_TO_UTF_8} UTF-32"),
    (b"\xff\xfe", "UTF-16", f"{_TO_UTF_8} UTF-16"),
    (b"\xfe\xff", "UTF-16", f"{_TO_UTF_8} UTF-16"),
)
_MAX_ODD_SHARE = 0.01  # of bytes that no text has; old files have some
HEAD_BYTES = max(len(magic) for magic, _, _ in _MAGIC)


def ending_of(name: str) -> str:
    """What says how the content is read: .txt for notes.TXT.gz, and .gz where nothing else does."""
    path = PurePath(name.lower())
    inner = PurePath(path.stem).suffix
    return inner if path.suffix in _OPENERS and inner else path.suffix


def is_read(name: str, also: tuple[str, ...]) -> bool:
    return ending_of(name) in SUFFIXES + also


def checked_endings(also: tuple[str, ...]) -> tuple[str, ...]:
    """Endings as they are compared. Raises: DataError for one of files that are no text."""
    endings = tuple(f".{ending.lower().removeprefix('.')}" for ending in also)
    for ending in endings:
        if cure := _CURES.get(ending):
            raise DataError(f"--also {ending}: such a file is no text; {cure}")
    return endings


def cure_of(name: str) -> str:
    """What to do with a file that is not read."""
    ending = ending_of(name)
    if ending in _CURES:
        return _CURES[ending]
    if ending in _ALSO_LINES:
        return f"{_AS_LINES}, or read it as plain text with --also {ending}"
    if not ending or ending in _OPENERS:
        return f"let its name end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
    return f"if it is text, read it with --also {ending}"


def unpacked(stream: BinaryIO, name: str) -> IO[bytes]:
    """The content of a file, whatever it is compressed with."""
    opener = _OPENERS.get(PurePath(name.lower()).suffix)
    opened: IO[bytes] = opener(stream) if opener else stream
    return opened


def check_head(head: bytes, file: Path) -> None:
    """Raises: DataError if a file begins as one that is no text."""
    for magic, what, cure in _MAGIC:
        if head.startswith(magic):
            raise DataError(f"{file} is no text, it begins as {what} does; {cure}")


class TextCheck:
    """Sees all that is read of a file, and stops where it is no text."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = self._nul = self._odd = 0

    def see(self, piece: bytes) -> None:
        """Raises: DataError once too much of it is NUL bytes, or no UTF-8."""
        self._seen += len(piece)
        self._nul += piece.count(0)
        if not piece.isascii():
            # A character that two pieces share counts too: some bytes of a million.
            self._odd += len(piece) - len(piece.decode("utf-8", "ignore").encode())
        for count, what, cure in (
            (self._nul, "NUL", "leave it out"),
            (self._odd, "no UTF-8", f"{_TO_UTF_8} LATIN1, or leave it out"),
        ):
            if count > _MAX_ODD_SHARE * self._seen:
                raise DataError(
                    f"{self._file} is no text: of its first {self._seen:,} bytes {count:,} are "
                    f"{what}; {cure}"
                )
