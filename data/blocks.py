"""Shards as plain Arrow IPC files: any Arrow reader opens them, Remesh reads rows by offset.

One record batch is one block. A row is read by its own pread, straight into the caller's buffer,
and proven by its own hash; a whole block is read only to prove the block, by a build, or to say
what is wrong. A memory map would be a little faster, but a shard truncated under it kills the
process with SIGBUS; a cache of decoded blocks would hold the page cache's bytes a second time in
every worker, and a dataset larger than it would cost a block a row under a global order.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import xxhash

from remesh.data.data_error import DataError
from remesh.data.manifest import ROW_HASHES, Shard
from remesh.data.order import Words
from remesh.data.regular_file import open_descriptor

Tokens = npt.NDArray[np.uint16]
TOKEN_BYTES = 2

_CLOSED = -1


@dataclass(slots=True, kw_only=True)
class ShardReader:
    """A shard, to be opened. What it raises names the shard, and the cure."""

    path: Path
    shard: Shard
    row_tokens: int
    vocab_size: int
    cure: str
    descriptor: int = _CLOSED

    @property
    def is_open(self) -> bool:
        return self.descriptor != _CLOSED

    def open(self) -> None:
        """Open the file. Raises: DataError if it is missing or its size is not the manifest's."""
        try:
            self.descriptor = open_descriptor(self.path)
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}; {self.cure}") from None
        try:
            self.check_size()
        except DataError:
            self.close()
            raise

    def close(self) -> None:
        if self.is_open:
            os.close(self.descriptor)
            self.descriptor = _CLOSED

    def check_size(self) -> None:
        """Raises: DataError if it is not the manifest's."""
        size = os.fstat(self.descriptor).st_size
        if size != self.shard.size_bytes:
            raise DataError(
                f"{self.path} has {size} bytes, the manifest says"
                f" {self.shard.size_bytes}; {self.cure}"
            )

    def verify(self, number: int) -> None:
        """Read a whole block. Raises: DataError if its bytes are not those that were written."""
        block = self.shard.blocks[number]
        found = os.pread(self.descriptor, block.size_bytes, block.offset)
        if len(found) != block.size_bytes:
            raise self._corrupt(number, f"{len(found)} bytes are left of {block.size_bytes}")
        if (digest := xxhash.xxh3_64_hexdigest(found)) != block.xxh3:
            raise self._corrupt(number, f"its xxh3 is {digest}, the manifest says {block.xxh3}")
        from remesh.data.arrow_blocks import tokens_start  # noqa: PLC0415 - loads pyarrow

        try:
            start = tokens_start(found, block.rows, self.row_tokens)
        except ValueError as error:
            raise self._corrupt(number, f"it is no block of rows ({error})") from None
        if block.offset + start != block.tokens_at:
            says = f"its tokens begin at {block.offset + start}, the manifest says"
            raise self._corrupt(number, f"{says} {block.tokens_at}")
        num_tokens = block.rows * self.row_tokens
        tokens = np.frombuffer(found, np.uint16, num_tokens, start)
        self.check_tokens(number, tokens)
        hashes = hashes_of(tokens.reshape(block.rows, -1)).astype("<u8").tobytes()
        if (proof := xxhash.xxh3_64_hexdigest(hashes)) != block.row_hashes:
            says = f"its rows' hashes have the xxh3 {proof}, the manifest says {block.row_hashes}"
            raise self._corrupt(number, says)

    def check_tokens(self, number: int, tokens: Tokens) -> None:
        """Raises: DataError if one of a block is beyond the vocabulary.

        It would train nothing in silence where the vocabulary is shared out, or worse.
        """
        if problem := token_problem(tokens, self.vocab_size):
            raise self._corrupt(number, problem)

    def refuse_row(self, number: int, row: int, found: int) -> NoReturn:
        """Say what is wrong with a row that was read with another hash. Raises: DataError."""
        self.check_size()
        self.verify(number)
        says = f"its row {row} was read with the xxh3 {found:x}, which {ROW_HASHES} does not say"
        raise self._corrupt(number, f"{says}, and a moment later the whole block was right")

    def _corrupt(self, number: int, reason: str) -> DataError:
        block = self.shard.blocks[number]
        where = f"block {number} of {self.path} (bytes {block.offset}"
        return DataError(
            f"{where} to {block.offset + block.size_bytes}) is corrupt: {reason}; {self.cure}"
        )


def hashes_of(rows: Tokens) -> Words:
    """The xxh3 of each row of an array of shape (n, row_tokens)."""
    view, size = rows.data.cast("B"), rows.shape[1] * TOKEN_BYTES
    pieces = (view[start : start + size] for start in range(0, len(view), size))
    return np.fromiter(map(xxhash.xxh3_64_intdigest, pieces), np.uint64, len(rows))


def token_problem(tokens: Tokens, vocab_size: int) -> str | None:
    """What there is to say of tokens beyond a vocabulary, None if there are none."""
    largest = int(tokens.max())
    if largest < vocab_size:
        return None
    return f"its token {largest} is beyond the vocabulary of {vocab_size}"
