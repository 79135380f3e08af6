"""What a shard says of itself, read without its tensors and without torch.

A shard is a safetensors file: eight bytes with the length of the header, the header as JSON, the
tensors. Its metadata tell which checkpoint it was written for and which fragments it holds.
"""

import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from remesh.parallel.errors import CheckpointError
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.manifest import CheckpointRef
from remesh.parallel.state.storage import Storage

MAX_HEADER_BYTES = 100 * 2**20
KEY = "remesh"

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeader:
    """What a shard says of itself: the checkpoint it was written for and its fragments."""

    ref: CheckpointRef
    fragments: tuple[Fragment, ...]


def shard_names(sizes_bytes: Mapping[str, int], num_writers: int) -> list[list[str]]:
    """The tensors that each writer saves: every name once, bytes balanced, the same on all ranks.

    Source: Graham 1969, largest first: at most 4/3 of the smallest possible maximum.
    """
    parts: list[list[str]] = [[] for _ in range(num_writers)]
    loads = [(0, writer) for writer in range(num_writers)]
    for name in sorted(sizes_bytes, key=lambda name: (-sizes_bytes[name], name)):
        load_bytes, writer = heapq.heappop(loads)
        parts[writer].append(name)
        heapq.heappush(loads, (load_bytes + sizes_bytes[name], writer))
    return parts


def shard_digest(encoded: bytes) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(encoded)}"


def read_header(storage: Storage, path: str) -> ShardHeader:
    """Cost: two small reads, however large the file is."""
    start = storage.get_range(path, 0, _LENGTH_BYTES)
    length = _header_length(start)
    return _header(storage.get_range(path, _LENGTH_BYTES, length))


def header_of(encoded: bytes) -> ShardHeader:
    """The header of a whole shard. Raises: CheckpointError if it has none."""
    length = _header_length(encoded[:_LENGTH_BYTES])
    return _header(encoded[_LENGTH_BYTES : _LENGTH_BYTES + length])


def _header_length(start: bytes) -> int:
    length = int.from_bytes(start, "little")
    if len(start) < _LENGTH_BYTES or length > MAX_HEADER_BYTES:
        raise CheckpointError("not a safetensors file (its header's length is impossible)")
    return length


def _header(encoded: bytes) -> ShardHeader:
    try:
        meta = json.loads(json.loads(encoded)["__metadata__"][KEY])
        return ShardHeader(
            ref=CheckpointRef(step=meta["step"], generation=meta["generation"]),
            fragments=tuple(_fragment(values) for values in meta["fragments"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"its header does not tell its fragments ({type(error).__name__}: {error})"
        ) from None


def _fragment(values: dict[str, Any]) -> Fragment:
    return Fragment(
        name=str(values["name"]),
        global_shape=_numbers(values["global_shape"]),
        offsets=_numbers(values["offsets"]),
        sizes=_numbers(values["sizes"]),
        dtype=str(values["dtype"]),
    )


def _numbers(values: list[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
