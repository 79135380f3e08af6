"""What a shard says of itself, read without its tensors and without torch.

A shard is a safetensors file: eight bytes with the length of the header, the header as JSON, the
tensors. Its metadata tell which checkpoint it was written for, which fragments it holds, and the
hashes of each fragment's chunks. The manifest holds the hash of the header, so that a reader proves
the ranges that it reads without reading the others. One hash a file, as before, makes every rank
read all; one a fragment makes it read a whole tensor for a few rows; and one a chunk in the
manifest makes that large.
"""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.bounded_json import FORMAT_KEY, brief, check_format, parse, shown
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.root_manifest import FORMAT_VERSION, CheckpointRef, ShardFile
from remesh.parallel.state.storage import Blob, Storage

MAX_HEADER_BYTES = 100 * 2**20
MAX_VALUES = 4_000_000
KEY = "remesh"

HEADER_DIGEST = "xxh3_128.header:"  # of a file: its header proves the rest

# Their names in safetensors and their bytes an element.
DTYPES = {
    "float64": ("F64", 8),
    "int64": ("I64", 8),
    "float32": ("F32", 4),
    "int32": ("I32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int16": ("I16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}

_LENGTH_BYTES = 8
_ALIGNMENT = 64
_DIGEST_BYTES = 8
_MIN_CHUNK_BYTES = 4096
_MAX_CHUNKS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPart:
    """A fragment in a shard, whose bytes begin at `start` of the file; one digest a chunk."""

    fragment: Fragment
    start: int
    size_bytes: int
    chunk_bytes: int
    digests: bytes

    @property
    def end(self) -> int:
        return self.start + self.size_bytes

    def has_chunks(self, offset: int, *pieces: memoryview) -> bool:
        """Whether these, one behind the other, are the chunks from `offset` of the fragment on."""
        found, first = self.chunk_digests(*pieces), offset // self.chunk_bytes * _DIGEST_BYTES
        return self.digests[first : first + len(found)] == found

    def chunk_digests(self, *pieces: memoryview) -> bytes:
        """Of all chunks that the pieces, one behind the other, consist of."""
        digests, chunk, left = [], xxhash.xxh3_64(), self.chunk_bytes
        for piece in pieces:
            at = 0
            if left == self.chunk_bytes:
                # All at once is several times as fast where chunks are small.
                at = len(piece) // left * left
                starts = range(0, at, left)
                digests += [xxhash.xxh3_64_digest(piece[one : one + left]) for one in starts]
            while at < len(piece):
                taken = piece[at : at + left]
                chunk.update(taken)
                at, left = at + len(taken), left - len(taken)
                if not left:
                    digests.append(chunk.digest())
                    chunk, left = xxhash.xxh3_64(), self.chunk_bytes
        if left < self.chunk_bytes:
            digests.append(chunk.digest())
        return b"".join(digests)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeader:
    """`parts` are in the order of the file and fill it from the header to the end."""

    ref: CheckpointRef
    parts: tuple[ShardPart, ...]
    size_bytes: int

    @property
    def start_bytes(self) -> int:
        """What stands in front of the tensors."""
        return self.size_bytes - sum(part.size_bytes for part in self.parts)

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        return tuple(part.fragment for part in self.parts)


def shard_key(fragment: Fragment) -> str:
    """The name of a fragment's tensor in its file: `w` for a whole one, `w[0:4,8:16]` for a box."""
    if fragment.is_whole:
        return fragment.name
    spans = zip(fragment.offsets, fragment.sizes, strict=True)
    return f"{fragment.name}[{','.join(f'{start}:{start + size}' for start, size in spans)}]"


def in_file_order(fragments: Iterable[Fragment]) -> list[Fragment]:
    """Large elements first, so that all are aligned; else by name and offset."""
    return sorted(
        fragments, key=lambda part: (-DTYPES[part.dtype][1], part.name, part.offsets, part.sizes)
    )


def lay_out(ref: CheckpointRef, fragments: Sequence[Fragment]) -> tuple[bytes, ShardHeader]:
    """The first bytes of the file that holds these fragments in this order, hashes left blank."""
    parts = []
    at = 0
    for fragment in fragments:
        size_bytes = fragment.num_elements * DTYPES[fragment.dtype][1]
        chunk_bytes = _chunk_bytes(size_bytes)
        part = ShardPart(
            fragment=fragment,
            start=at,
            size_bytes=size_bytes,
            chunk_bytes=chunk_bytes,
            digests=bytes(_DIGEST_BYTES * -(-size_bytes // chunk_bytes)),
        )
        parts.append(part)
        at = part.end
    encoded = _encode(ref, parts, 0)
    parts = [replace(part, start=len(encoded) + part.start) for part in parts]
    return encoded, ShardHeader(ref=ref, parts=tuple(parts), size_bytes=len(encoded) + at)


def sealed(header: ShardHeader, file: memoryview) -> bytes:
    """The first bytes of the file again, of the same length, with the hashes of its tensors.

    Its `ref` may be another than it was laid out for, if that was no shorter.
    """
    parts = [
        replace(part, digests=part.chunk_digests(file[part.start : part.end]))
        for part in header.parts
    ]
    encoded = _encode(header.ref, parts, header.start_bytes)
    assert len(encoded) == header.start_bytes, "the hashes have another length than their place"
    return encoded


def shard_digest(encoded: Blob) -> str:
    """Of a sealed shard or of its first bytes: the digest that stands in the manifest."""
    view = memoryview(encoded)
    length = _header_length(bytes(view[:_LENGTH_BYTES]))
    return HEADER_DIGEST + xxhash.xxh3_128_hexdigest(view[: _LENGTH_BYTES + length])


def read_header(storage: Storage, path: str, file: ShardFile) -> ShardHeader:
    """The header that `file` was written with. Cost: three small reads, however large it is.

    Raises: CheckpointError, FileNotFoundError.
    """
    # One byte comes back of two asked for: the file ends exactly there.
    if len(storage.get_range(path, file.size_bytes - 1, 2)) != 1:
        raise CheckpointError(f"it has not {file.size_bytes} bytes")
    start = storage.get_range(path, 0, _LENGTH_BYTES)
    length = _header_length(start)
    if _LENGTH_BYTES + length > file.size_bytes:
        raise CheckpointError("its header is longer than the file")
    encoded = start + storage.get_range(path, _LENGTH_BYTES, length)
    if shard_digest(encoded) != file.digest:
        raise CheckpointError("the hash of its header is not the one in the manifest")
    return header_of(encoded, size_bytes=file.size_bytes)


def header_of(encoded: Blob, *, size_bytes: int) -> ShardHeader:
    """The header of a shard of that size. Raises: CheckpointError if it has none, or another."""
    view = memoryview(encoded)
    length = _header_length(bytes(view[:_LENGTH_BYTES]))
    data_start = _LENGTH_BYTES + length
    try:
        values = _parsed(bytes(view[_LENGTH_BYTES:data_start]))
        meta = _parsed(values["__metadata__"][KEY].encode())
        check_format(meta, FORMAT_VERSION)
        parts = [_part(values, told, data_start) for told in meta["fragments"]]
        place = {name: _count(meta[name]) for name in ("step", "generation", "start")}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"its header does not tell its fragments ({type(error).__name__}: {brief(error)})"
        ) from None
    parts.sort(key=lambda part: (part.start, part.size_bytes))
    ends = [data_start, *(part.end for part in parts)]
    if [part.start for part in parts] != ends[:-1] or len(values) != len(parts) + 1:
        raise CheckpointError("its tensors are not those that its header names")
    if ends[-1] != size_bytes:
        raise CheckpointError(f"its header tells of {ends[-1]} bytes, it has {size_bytes}")
    ref = CheckpointRef(**place)
    return ShardHeader(ref=ref, parts=tuple(parts), size_bytes=size_bytes)


def _chunk_bytes(size_bytes: int) -> int:
    """A power of two: few enough chunks for the header, small enough for a slice of the rows."""
    return max(_MIN_CHUNK_BYTES, 1 << max(0, -(-size_bytes // _MAX_CHUNKS) - 1).bit_length())


def _encode(ref: CheckpointRef, parts: Sequence[ShardPart], data_start: int) -> bytes:
    told = [
        {
            "name": part.fragment.name,
            "global_shape": part.fragment.global_shape,
            "offsets": part.fragment.offsets,
            "sizes": part.fragment.sizes,
            "dtype": part.fragment.dtype,
            "chunk_bytes": part.chunk_bytes,
            "digests": base64.b64encode(part.digests).decode(),
        }
        for part in parts
    ]
    meta = {
        FORMAT_KEY: FORMAT_VERSION,
        "step": ref.step,
        "generation": ref.generation,
        "start": ref.start,
        "fragments": told,
    }
    values: dict[str, Any] = {"__metadata__": {KEY: json.dumps(meta, separators=(",", ":"))}}
    for part in parts:
        key = shard_key(part.fragment)
        assert key not in values, f"{key} stands twice in one shard"
        values[key] = {
            "dtype": DTYPES[part.fragment.dtype][0],
            "shape": part.fragment.sizes,
            "data_offsets": (part.start - data_start, part.end - data_start),
        }
    encoded = json.dumps(values, separators=(",", ":")).encode()
    length = -(-(_LENGTH_BYTES + len(encoded)) // _ALIGNMENT) * _ALIGNMENT
    encoded = encoded.ljust(max(length, data_start) - _LENGTH_BYTES)
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded


def _header_length(start: bytes) -> int:
    length = int.from_bytes(start, "little")
    if len(start) < _LENGTH_BYTES or length > MAX_HEADER_BYTES:
        raise CheckpointError("not a safetensors file (its header's length is impossible)")
    return length


def _parsed(encoded: bytes) -> dict[str, Any]:
    values: dict[str, Any] = parse(encoded, max_bytes=MAX_HEADER_BYTES, max_values=MAX_VALUES)
    return values


def _part(values: dict[str, Any], told: dict[str, Any], data_start: int) -> ShardPart:
    fragment = Fragment(
        name=_text(told["name"]),
        global_shape=_counts(told["global_shape"]),
        offsets=_counts(told["offsets"]),
        sizes=_counts(told["sizes"]),
        dtype=_text(told["dtype"]),
    )
    entry = values[shard_key(fragment)]
    dtype, item_bytes = DTYPES[fragment.dtype]
    start, end = _counts(entry["data_offsets"])
    size_bytes = math.prod(fragment.sizes) * item_bytes
    if (entry["dtype"], _counts(entry["shape"]), end - start) != (
        dtype,
        fragment.sizes,
        size_bytes,
    ):
        raise ValueError(f"{fragment} is not the tensor of this name")
    chunk_bytes = _count(told["chunk_bytes"])
    digests = base64.b64decode(told["digests"], validate=True)
    if not chunk_bytes or len(digests) != _DIGEST_BYTES * -(-size_bytes // chunk_bytes):
        raise ValueError(f"{fragment} has not one hash a chunk")
    return ShardPart(
        fragment=fragment,
        start=data_start + start,
        size_bytes=size_bytes,
        chunk_bytes=chunk_bytes,
        digests=digests,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{shown(value)} is no count")
    return value


def _counts(values: Any) -> tuple[int, ...]:
    return tuple(_count(value) for value in values)
