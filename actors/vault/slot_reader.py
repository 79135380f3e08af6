"""A snapshot read out of a vault, near or far, by ranges; whoever reads it proves it."""

from collections.abc import Iterator
from contextlib import contextmanager

from remesh.actors.vault.messages import HeaderFollows, RangeFollows, ReadHeader, ReadRange
from remesh.actors.vault.wire import Line, VaultError
from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.job.timers import Timers
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.headers import MAX_HEADER_BYTES, ShardHeader, header_of, shard_digest


class VaultReader:
    """One slot over one connection."""

    def __init__(self, line: Line, slot: VaultSlot, limit_s: float) -> None:
        self._line = line
        self._limit_s = limit_s
        self._slot = slot

    def end(self) -> None:
        """From any thread: who reads hears an OSError at once. Repeatable."""
        self._line.close()

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
        return header

    def get_range(self, start: int, length: int) -> bytearray:
        """Raises: OSError."""
        slot = self._slot
        asked = ReadRange(
            generation=slot.generation, step=slot.step, held=slot.held, start=start, length=length
        )
        if self._line.ask(asked, self._limit_s) != RangeFollows(length=length):
            raise VaultError(f"the vault has not {length} bytes from {start} on")
        return self._line.receive_bytes(length)


@contextmanager
def reading(address: str, token: str, slot: VaultSlot, timers: Timers) -> Iterator[VaultReader]:
    """The slot in the vault at this address. Raises: OSError."""
    line = Line.open(address, token, timers.form_s)
    try:
        yield VaultReader(line, slot, timers.form_s)
    finally:
        line.close()
