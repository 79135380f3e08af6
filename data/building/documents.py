"""The texts of files, in pieces of bounded size, and what had to be mended or left out in them."""

import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from remesh.data.building.file_forms import (
    HEAD_BYTES,
    JSON_LINES,
    TextCheck,
    check_head,
    ending_of,
    unpacked,
)
from remesh.data.data_error import DataError

SEPARATOR = b"\0"

_PIECE_BYTES = 1 << 20
_MAX_KEYS_SHOWN = 5
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {bool: "true or false", int: "a number", float: "a number", list: "a list"}

TellLine = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a source is read: the key of the texts in JSON lines, how many bad lines may be left out,
    and what other endings text files have.
    """

    text_key: str = "text"
    skip_bad_lines: int = 0
    also: tuple[str, ...] = ()
    told_line_bytes: int = 64 << 20
    max_line_bytes: int = 1 << 30

    @property
    def options(self) -> tuple[str, ...]:
        """Those of `remesh data build` that read so."""
        key = ("--text-key", self.text_key) if self.text_key != "text" else ()
        bad = ("--skip-bad-lines", str(self.skip_bad_lines)) if self.skip_bad_lines else ()
        return (*key, *bad, *(word for ending in self.also for word in ("--also", ending)))


READ_PLAINLY = Reading()


class Documents:
    """Reads the files of one source, one after the other."""

    def __init__(self, reading: Reading, tell: TellLine) -> None:
        self._reading = reading
        self._tell = tell
        self._num_replaced = 0
        self._num_bad = 0
        self._first_bad = ""

    def pieces(self, file: Path) -> Iterator[bytes]:
        """The documents of a file, a zero byte behind each.

        A zero byte inside a text would read as a boundary and becomes a space; half a surrogate
        pair, which JSON can hold and UTF-8 cannot, becomes U+FFFD. Empty documents vanish.
        Raises: DataError for what cannot be read, or is no text.
        """
        try:
            with file.open("rb") as packed, unpacked(packed, file.name) as stream:
                check_head(_head(stream), file)
                lines = ending_of(file.name) in JSON_LINES
                yield from self._lines(stream, file) if lines else _whole(stream, file)
        except (EOFError, lzma.LZMAError, zlib.error) as error:
            raise _damaged(file, str(error)) from None
        except OSError as error:
            if error.errno is None:  # of a decompressor
                raise _damaged(file, str(error)) from None
            raise DataError(f"cannot read {file}: {error.strerror}") from None

    def told(self) -> Iterator[str]:
        """What is not in the dataset as it stands in the files."""
        if self._num_replaced:
            yield (
                f"replaced {_count(self._num_replaced, 'character')} that are no Unicode (halves "
                f"of surrogate pairs) by U+FFFD"
            )
        if self._num_bad:
            lines = _count(self._num_bad, "bad line")
            yield f"left out {lines}, the first of them {self._first_bad}"

    def _lines(self, stream: IO[bytes], file: Path) -> Iterator[bytes]:
        limit = self._reading.max_line_bytes
        for number in count(1):
            line = stream.readline(limit + 1)
            if not line:
                return
            where = f"{file}, line {number}"
            if len(line) > limit:
                self._leave_out(where, f"more than {limit:,} bytes")
                _skip_line(stream, line)
                continue
            if len(line) > self._reading.told_line_bytes:
                self._tell(f"{where} has {len(line):,} bytes; a line is held in memory whole")
            if text := self._text_of(line, where):
                yield text.replace(SEPARATOR, b" ") + SEPARATOR

    def _text_of(self, line: bytes, where: str) -> bytes:
        if not line.strip():
            return b""
        try:
            text = _text(line, self._reading.text_key)
        except _BadLineError as bad:
            self._leave_out(where, str(bad), bad.other_key)
            return b""
        try:
            return text.encode()
        except UnicodeEncodeError:
            text, found = _SURROGATE.subn("\ufffd", text)
            self._num_replaced += found
            return text.encode()

    def _leave_out(self, where: str, found: str, other_key: str | None = None) -> None:
        """Raises: DataError if there are more bad lines than may be left out."""
        key, allowed = self._reading.text_key, self._reading.skip_bad_lines
        problem = f'{where}: expected a JSON object with a string "{key}", found {found}'
        self._num_bad += 1
        self._first_bad = self._first_bad or problem
        if self._num_bad <= allowed:
            return
        if allowed:
            raise DataError(
                f"{problem}; these are {self._num_bad} bad lines and --skip-bad-lines {allowed} "
                f"leaves out {allowed}; raise it, or mend the file"
            )
        named = f"name the key of the text with --text-key {other_key}, or " if other_key else ""
        raise DataError(
            f"{problem}; {named}let remesh data build leave out and count up to N such lines "
            f"with --skip-bad-lines N"
        )


class _BadLineError(Exception):
    """What stands there instead, and a key that may be the one that holds the text."""

    def __init__(self, found: str, other_key: str | None = None) -> None:
        super().__init__(found)
        self.other_key = other_key


def _text(line: bytes, key: str) -> str:
    """Raises: _BadLineError."""
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise _BadLineError(f"no UTF-8 at byte {error.start + 1}") from None
    except RecursionError:
        raise _BadLineError("values that are nested too deeply") from None
    except ValueError as error:
        raise _BadLineError(f"no JSON ({error})") from None
    if not isinstance(value, dict):
        raise _BadLineError(_kind(value))
    if key not in value:
        keys = ", ".join(f'"{name}"' for name in [*value][:_MAX_KEYS_SHOWN])
        strings = [name for name, text in value.items() if isinstance(text, str)]
        raise _BadLineError(f"only {keys}" if keys else "{}", strings[0] if strings else None)
    text = value[key]
    if not isinstance(text, str):
        raise _BadLineError(f'"{key}" with {_kind(text)}')
    return text


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "a bare string"
    if isinstance(value, dict):
        return "an object"
    return "null" if value is None else _KINDS[type(value)]


def _whole(stream: IO[bytes], file: Path) -> Iterator[bytes]:
    check = TextCheck(file)
    empty = True
    while piece := stream.read(_PIECE_BYTES):
        empty = False
        check.see(piece)
        yield piece.replace(SEPARATOR, b" ")
    if not empty:
        yield SEPARATOR


def _head(stream: Any) -> bytes:
    """The first bytes of a stream, which stay in it."""
    head: bytes = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    return head


def _skip_line(stream: IO[bytes], begun: bytes) -> None:
    while begun and not begun.endswith(b"\n"):
        begun = stream.readline(_PIECE_BYTES)


def _damaged(file: Path, reason: str) -> DataError:
    return DataError(
        f"{file} cannot be unpacked: {reason}; it is damaged, or not compressed as its name says"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
