"""What a checkpoint needs of the place that keeps it; the layers above bring disks and buckets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Protocol

Blob = bytes | bytearray | memoryview | mmap


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first bytes of a blob, not known before `fill` has put them there: a hash of the rest."""

    num_bytes: int
    fill: Callable[[], None]


def scatter(data: bytes, into: Sequence[memoryview]) -> int:
    """Fills these, one after the other, as far as the data goes; how many bytes that are."""
    left = memoryview(data)
    for view in into:
        piece = left[: len(view)]
        view[: len(piece)] = piece
        left = left[len(piece) :]
    return len(data)


class Storage(Protocol):
    """Named immutable blobs. Paths are relative and use "/".

    What `put` and `put_if_absent` leave is all or nothing, and durable when they return.

    Raises: FileNotFoundError for a path that is not there, else OSError.
    """

    def get(self, path: str) -> bytes: ...

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """At most `length` bytes, fewer where the blob ends earlier."""
        ...

    def read_into(self, path: str, offset: int, into: Sequence[memoryview]) -> int:
        """Fills these, one after the other, from `offset` on. The bytes that came, fewer than asked
        for where the blob ends earlier.
        """
        ...

    def put(self, path: str, data: Blob) -> None:
        """Replaces what was there."""
        ...

    def put_if_absent(self, path: str, data: Blob, head: Head | None = None) -> bool:
        """False, with nothing written, if the path exists. One of two concurrent callers wins.

        The head is filled once in any case, on a thread of its own where the rest can be written
        meanwhile.
        """
        ...

    def list(self, prefix: str) -> list[str]:
        """Every path that begins with `prefix`, at any depth, sorted; no unfinished puts."""
        ...

    def delete(self, path: str) -> None:
        """Deleting what is not there is no error."""
        ...
