"""What of a shard is Arrow's: its schema, and where the tokens of a block begin.

A rank reads rows by offset and needs none of it, so it loads no pyarrow.
"""

from typing import Any

import pyarrow as pa


def row_schema(row_tokens: int) -> Any:
    """The Arrow schema of a shard: one column `tokens`, lists of fixed length without nulls."""
    token = pa.field("token", pa.uint16(), nullable=False)
    return pa.schema([pa.field("tokens", pa.list_(token, row_tokens), nullable=False)])


def tokens_start(message: bytes, rows: int, row_tokens: int) -> int:
    """Where the tokens begin in the message of a block. Raises: ValueError if it is none."""
    try:
        return _place(message, rows, row_tokens)
    except (pa.ArrowException, EOFError, OSError) as error:
        raise ValueError(str(error)) from None


def _place(message: bytes | pa.Buffer, rows: int, row_tokens: int) -> int:
    buffer = pa.py_buffer(message)
    schema = row_schema(row_tokens)
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.BufferReader(buffer)), schema)
    tokens = batch.column(0).values
    if (batch.num_rows, len(tokens)) != (rows, rows * row_tokens):
        raise ValueError(f"{batch.num_rows} rows with {len(tokens)} tokens, expected {rows} rows")
    return int(tokens.buffers()[1].address - buffer.address)
