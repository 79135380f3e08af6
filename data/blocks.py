"""Shards as plain Arrow IPC files: any Arrow reader opens them, Remesh reads rows by offset.

One record batch is one block. A block is read and hashed whole when it is first touched; from then
on each row is read by its own pread, straight into the caller's buffer. A memory map would be a
little faster, but a shard truncated under it kills the process with SIGBUS; a cache of decoded
blocks would hold the page cache's bytes a second time in every worker, and a dataset larger than
it would cost a block a row under a global order.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from remesh.data.data_error import DataError
from remesh.data.manifest import Block, Shard
from remesh.data.regular_file import open_descriptor

Tokens = npt.NDArray[np.uint16]
TOKEN_BYTES = 2

_CLOSED = -1
_UNREAD = -1


def row_schema(row_tokens: int) -> Any:
    """The Arrow schema of a shard: one column `tokens`, lists of fixed length without nulls."""
    token = pa.field("token", pa.uint16(), nullable=False)
    return pa.schema([pa.field("tokens", pa.list_(token, row_tokens), nullable=False)])


class ShardWriter:
    """Writes blocks into an open file and notes where they stand."""

    def __init__(self, file: BinaryIO, row_tokens: int, vocab_size: int) -> None:
        self._file = file
        self._vocab_size = vocab_size
        self._schema = row_schema(row_tokens)
        self._writer = pa.ipc.new_file(file, self._schema)
        self._blocks: list[Block] = []

    def write(self, rows: Tokens) -> None:
        """Append rows of shape (n, row_tokens) as one block.

        Raises: DataError if a token is beyond the vocabulary.
        """
        if problem := _token_problem(rows, self._vocab_size):
            raise DataError(f"{problem}; give the tokenizer's own vocab_size")
        values = pa.Array.from_buffers(pa.uint16(), rows.size, [None, pa.py_buffer(rows)])
        column = pa.FixedSizeListArray.from_arrays(values, type=self._schema.field(0).type)
        batch = pa.record_batch([column], schema=self._schema)
        message = batch.serialize()
        self._writer.write_batch(batch)
        self._blocks.append(
            Block(
                offset=self._file.tell() - message.size,
                size_bytes=message.size,
                rows=len(rows),
                xxh3=xxhash.xxh3_64_hexdigest(message),
            )
        )

    def finish(self, name: str) -> Shard:
        """The shard as written; the caller closes the file."""
        self._writer.close()
        return Shard(file=name, size_bytes=self._file.tell(), blocks=tuple(self._blocks))


@dataclass(slots=True, kw_only=True)
class ShardReader:
    """An open shard. `starts` holds where the tokens of each verified block begin in the file."""

    path: Path
    shard: Shard
    row_tokens: int
    vocab_size: int
    cure: str
    descriptor: int = _CLOSED
    changed_ns: int = 0
    starts: list[int] = field(default_factory=list)

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
            self.notice_changes()
        except DataError:
            self.close()
            raise

    def close(self) -> None:
        if self.is_open:
            os.close(self.descriptor)
            self.descriptor = _CLOSED

    def notice_changes(self) -> None:
        """Forget what was verified if the file was written to, so that it is verified again."""
        status = os.fstat(self.descriptor)
        if status.st_size != self.shard.size_bytes:
            raise DataError(
                f"{self.path} has {status.st_size} bytes, the manifest says"
                f" {self.shard.size_bytes}; {self.cure}"
            )
        if status.st_mtime_ns != self.changed_ns:
            self.changed_ns = status.st_mtime_ns
            self.starts = [_UNREAD] * len(self.shard.blocks)

    def read_row(self, number: int, row: int, out: Tokens) -> None:
        """Fill `out` with a row of a block, verifying the block at its first touch."""
        start = self.starts[number]
        if start == _UNREAD:
            start = self.verify(number)
        size = self.row_tokens * TOKEN_BYTES
        got = os.preadv(self.descriptor, [out.data], start + row * size)
        if got != size:
            raise self._corrupt(number, f"row {row} has {got} bytes, expected {size}")

    def verify(self, number: int) -> int:
        """Where the tokens of a block begin in the file, once all its bytes have been checked.

        Raises: DataError if they are not those that were written.
        """
        block = self.shard.blocks[number]
        found = os.pread(self.descriptor, block.size_bytes, block.offset)
        if len(found) != block.size_bytes:
            raise self._corrupt(number, f"{len(found)} bytes are left of {block.size_bytes}")
        if (digest := xxhash.xxh3_64_hexdigest(found)) != block.xxh3:
            raise self._corrupt(number, f"its xxh3 is {digest}, the manifest says {block.xxh3}")
        try:
            start = _tokens_start(found, block.rows, self.row_tokens)
        except (pa.ArrowException, EOFError, OSError, ValueError) as error:
            raise self._corrupt(number, f"it is no block of rows ({error})") from None
        # One beyond would train nothing in silence where the vocabulary is shared out, or worse.
        num_tokens = block.rows * self.row_tokens
        tokens = np.frombuffer(found, np.uint16, num_tokens, start)
        if problem := _token_problem(tokens, self.vocab_size):
            raise self._corrupt(number, problem)
        self.starts[number] = block.offset + start
        return self.starts[number]

    def _corrupt(self, number: int, reason: str) -> DataError:
        block = self.shard.blocks[number]
        where = f"block {number} of {self.path} (bytes {block.offset}"
        return DataError(
            f"{where} to {block.offset + block.size_bytes}) is corrupt: {reason}; {self.cure}"
        )


def _token_problem(tokens: Tokens, vocab_size: int) -> str | None:
    largest = int(tokens.max())
    if largest < vocab_size:
        return None
    return f"its token {largest} is beyond the vocabulary of {vocab_size}"


def _tokens_start(message: bytes, rows: int, row_tokens: int) -> int:
    buffer = pa.py_buffer(message)
    schema = row_schema(row_tokens)
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.BufferReader(buffer)), schema)
    tokens = batch.column(0).values
    if (batch.num_rows, len(tokens)) != (rows, rows * row_tokens):
        raise ValueError(f"{batch.num_rows} rows with {len(tokens)} tokens, expected {rows} rows")
    return int(tokens.buffers()[1].address - buffer.address)
