"""A snapshot read out of a vault, near or far, by ranges; whoever reads it proves it.

Where the slot's file is on this node, ranges are read out of that, as fast as memory is copied: no
keyed hash is needed for what nobody stands in between of. Whether it is there is not asked: a file
of that name that begins as the vault says is the slot. It is read, never mapped: nothing keeps a
vault from giving the slot to another snapshot, of which the hashes then tell.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from remesh.actors.node.private_files import open_file
from remesh.actors.vault.messages import HeaderFollows, RangeFollows, ReadHeader, ReadRange
from remesh.actors.vault.slot_memory import CONTROL_BYTES
from remesh.actors.vault.wire import Line, VaultError
from remesh.data.regular_file import fill_from
from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.job.timers import Timers
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.headers import MAX_HEADER_BYTES, ShardHeader, header_of, shard_digest
from remesh.parallel.state.landing import NUM_READERS, RUN_BYTES

# Read at once out of memory: what a core still has at hand when it hashes it.
_CACHED_BYTES = 2**19


class VaultReader:
    """One slot over one connection, and out of its file where that is here and `by_file`."""

    def __init__(self, line: Line, slot: VaultSlot, limit_s: float, *, by_file: bool) -> None:
        self._line = line
        self._limit_s = limit_s
        self._slot = slot
        self._by_file = by_file
        self._file = -1
        self._ended = False

    @property
    def num_readers(self) -> int:
        return NUM_READERS if self._file >= 0 else 1

    @property
    def run_bytes(self) -> int:
        return _CACHED_BYTES if self._file >= 0 else RUN_BYTES

    def end(self) -> None:
        """From any thread: who reads hears an OSError at once. Repeatable."""
        self._ended = True
        self._line.close()

    def close(self) -> None:
        """Nobody reads any more."""
        self.end()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def header(self) -> ShardHeader:
        """Proven by the hash that the vault keeps. Raises: OSError, CheckpointError."""
        slot = self._slot
        asked = ReadHeader(generation=slot.generation, step=slot.step, held=slot.held)
        told = self._line.ask(asked, self._limit_s)
        if not isinstance(told, HeaderFollows):
            raise VaultError(f"the vault does not tell what it has, but {told}")
        if told.header_bytes > MAX_HEADER_BYTES:
            raise VaultError(f"a header of {told.header_bytes} bytes is none")
        start = self._line.receive_bytes(told.header_bytes)
        if shard_digest(start) != told.digest:
            raise CheckpointError("the hash of its header is another than when it was sealed")
        header = header_of(start, size_bytes=told.size_bytes)
        if (header.ref.generation, header.ref.step) != (slot.generation, slot.step):
            raise CheckpointError(f"it is of {header.ref.name}")
        if self._by_file and told.path:
            self._look_for(Path(told.path), start)
        return header

    def read_into(self, start: int, into: Sequence[memoryview]) -> int:
        """Raises: OSError."""
        if self._ended:
            raise VaultError("nobody waits for it any more")
        if self._file >= 0:
            return fill_from(self._file, CONTROL_BYTES + start, into)
        length, slot = sum(map(len, into)), self._slot
        asked = ReadRange(
            generation=slot.generation, step=slot.step, held=slot.held, start=start, length=length
        )
        if self._line.ask(asked, self._limit_s) != RangeFollows(length=length):
            raise VaultError(f"the vault has not {length} bytes from {start} on")
        self._line.receive_into(*into)
        return length

    def _look_for(self, path: Path, start: bytearray) -> None:
        """Use the slot's file if it is here."""
        found = bytearray(len(start))
        with suppress(OSError):
            self._file = open_file(path, os.O_RDONLY | os.O_NONBLOCK)
            fill_from(self._file, CONTROL_BYTES, [memoryview(found)])
        if self._file >= 0 and found != start:
            os.close(self._file)
            self._file = -1


@contextmanager
def reading(
    address: str, token: str, slot: VaultSlot, timers: Timers, *, by_file: bool = True
) -> Iterator[VaultReader]:
    """The slot in the vault at this address. Raises: OSError."""
    reader = VaultReader(
        Line.open(address, token, timers.form_s), slot, timers.form_s, by_file=by_file
    )
    try:
        yield reader
    finally:
        reader.close()
