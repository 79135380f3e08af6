"""Writes shards of rows, with the hashes that prove them."""

from typing import BinaryIO

import pyarrow as pa
import xxhash

from remesh.data.arrow_blocks import row_schema, tokens_start
from remesh.data.blocks import Tokens, hashes_of, token_problem
from remesh.data.data_error import DataError
from remesh.data.manifest import Block, Shard


class ShardWriter:
    """Writes blocks into an open file, the hashes of their rows into another, and notes where they
    stand.
    """

    def __init__(
        self, file: BinaryIO, row_hashes: BinaryIO, row_tokens: int, vocab_size: int
    ) -> None:
        self._file = file
        self._row_hashes = row_hashes
        self._row_tokens = row_tokens
        self._vocab_size = vocab_size
        self._schema = row_schema(row_tokens)
        self._writer = pa.ipc.new_file(file, self._schema)
        self._blocks: list[Block] = []

    def write(self, rows: Tokens) -> None:
        """Append rows of shape (n, row_tokens) as one block.

        Raises: DataError if a token is beyond the vocabulary.
        """
        if problem := token_problem(rows, self._vocab_size):
            raise DataError(f"{problem}; give the tokenizer's own vocab_size")
        values = pa.Array.from_buffers(pa.uint16(), rows.size, [None, pa.py_buffer(rows)])
        column = pa.FixedSizeListArray.from_arrays(values, type=self._schema.field(0).type)
        batch = pa.record_batch([column], schema=self._schema)
        message = batch.serialize()
        self._writer.write_batch(batch)
        offset = self._file.tell() - message.size
        hashes = hashes_of(rows).astype("<u8").tobytes()
        self._row_hashes.write(hashes)
        self._blocks.append(
            Block(
                offset=offset,
                size_bytes=message.size,
                rows=len(rows),
                xxh3=xxhash.xxh3_64_hexdigest(message),
                tokens_at=offset + tokens_start(message, len(rows), self._row_tokens),
                row_hashes=xxhash.xxh3_64_hexdigest(hashes),
            )
        )

    def finish(self, name: str) -> Shard:
        """The shard as written; the caller closes the file."""
        self._writer.close()
        return Shard(file=name, size_bytes=self._file.tell(), blocks=tuple(self._blocks))
