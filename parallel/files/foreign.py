"""Tensors in files that others wrote, found by their headers and read by ranges.

Whatever the format, a tensor is some bytes, row after row, at some place of some file. A reader of
a format tells these places (`Stored`), and one function reads what is wanted of them: a rank never
reads the parts of other ranks, and nothing of a file is taken for more than numbers.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.bounded_json import brief, parse, shown
from remesh.parallel.state.fragments import Fragment, Numbers, item_bytes
from remesh.parallel.state.headers import DTYPES, MAX_HEADER_BYTES, MAX_VALUES
from remesh.parallel.state.reshard import HeldFragment, Move, ReshardError, reshard
from remesh.parallel.state.shards import empty
from remesh.parallel.state.storage import Storage

_LENGTH_BYTES = 8
# A box whose bytes lie further apart than this is read in several pieces.
_PIECE_BYTES = 32 * 2**20
_TOO_MANY = 2**50  # elements or bytes: no file system has files of that size
_MOST_DIMENSIONS = 64  # as in torch
_LONGEST_NAME = 500  # characters
_NAMES = {stored: name for name, (stored, _) in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A box of a tensor whose bytes, row after row, begin at `start` of a file."""

    fragment: Fragment
    path: str
    start: int


def read_stored(
    storage: Storage, stored: Iterable[Stored], want: Sequence[Fragment]
) -> dict[Fragment, Tensor]:
    """The boxes that are wanted, on the CPU; values are converted to the dtypes of the boxes.

    Cost: of each stored box that is met, its bytes from the first to the last that is wanted: rows
    cost no more than themselves, columns cost all their rows. Memory for 32 MiB besides the result.
    Raises: CheckpointError if a box is not held, or a file ends before it should.
    """
    places = {one.fragment: one for one in stored}
    have: dict[str, list[HeldFragment]] = defaultdict(list)
    for fragment, one in places.items():
        have[fragment.name].append(HeldFragment(fragment=fragment, holders=(one.path,)))
    tensors = {box: empty(box) for box in want}
    asked = {_as_held(box, have): tensor for box, tensor in tensors.items()}
    try:
        moves = reshard(have, list(asked), 0)
    except ReshardError as error:
        raise CheckpointError(f"the files do not hold what is wanted: {error}") from None
    for move in moves:
        for piece in _pieces(move):
            part = _read_piece(storage, places[piece.held], piece)
            asked[piece.want][piece.write] = part
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsFile:
    """What the header of a safetensors file tells; `metadata` is text by name."""

    metadata: Mapping[str, str]
    stored: tuple[Stored, ...]


def safetensors_file(storage: Storage, path: str) -> SafetensorsFile:
    """Every tensor of a safetensors file, by its name there. Cost: three small reads.

    Raises: CheckpointError with the cure if it is no such file, or ends before its last tensor.
    """
    try:
        return _parsed(storage, path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; fetch it again") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{path} is no whole safetensors file ({brief(error)}); fetch it again"
        ) from None


def _parsed(storage: Storage, path: str) -> SafetensorsFile:
    length = int.from_bytes(storage.get_range(path, 0, _LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError("its header's length is impossible")
    encoded = storage.get_range(path, _LENGTH_BYTES, length)
    if not encoded or len(encoded) != length:
        raise ValueError("its header is cut short")
    values: dict[str, Any] = parse(encoded, max_bytes=MAX_HEADER_BYTES, max_values=MAX_VALUES)
    metadata = values.pop("__metadata__", {})
    first = _LENGTH_BYTES + length
    stored = [_stored(path, name, told, first) for name, told in values.items()]
    end = _end_of(stored, first)
    # One byte comes back of two asked for: the file ends exactly there.
    if len(storage.get_range(path, end - 1, 2)) != 1:
        raise ValueError(f"its header tells of {end} bytes, it has another size")
    return SafetensorsFile(metadata=dict(metadata), stored=tuple(stored))


def _stored(path: str, key: str, told: Mapping[str, Any], first: int) -> Stored:
    name = tensor_name(key)
    dtype = _NAMES.get(told["dtype"])
    if dtype is None:
        raise ValueError(f"{name} has the unknown dtype {shown(told['dtype'])}")
    shape, (start, end) = counts(told["shape"]), counts(told["data_offsets"])
    if end - start != math.prod(shape) * item_bytes(dtype):
        raise ValueError(f"{name} has another size than its shape tells")
    fragment = Fragment(
        name=name, global_shape=shape, offsets=(0,) * len(shape), sizes=shape, dtype=dtype
    )
    return Stored(fragment=fragment, path=path, start=first + start)


def _end_of(stored: Iterable[Stored], first: int) -> int:
    """Where the tensors end, which fill a file one behind the other: the format wants it so.

    Raises: ValueError if two share a byte, or one is nobody's.
    """
    end = first
    for one in sorted(stored, key=lambda one: (one.start, one.fragment.num_bytes)):
        if one.start != end:
            raise ValueError(f"{one.fragment.name} does not begin where the one before it ends")
        end += one.fragment.num_bytes
    return end


def tensor_name(value: Any) -> str:
    """Raises: ValueError if it is none that a line could show."""
    if isinstance(value, str) and len(value) <= _LONGEST_NAME and value.isprintable():
        return value
    raise ValueError(f"{shown(value)} is no name of a tensor")


def counts(values: Iterable[Any]) -> Numbers:
    """Raises: ValueError if one of them is no whole number from 0 on, or they are too many."""
    numbers = tuple(values)
    if len(numbers) > _MOST_DIMENSIONS:
        raise ValueError(f"{len(numbers)} numbers stand where up to {_MOST_DIMENSIONS} should")
    if not all(type(number) is int and 0 <= number < _TOO_MANY for number in numbers):
        raise ValueError(f"{shown(numbers)} are no counts")
    return numbers


def _as_held(box: Fragment, have: Mapping[str, Sequence[HeldFragment]]) -> Fragment:
    held = have.get(box.name)
    return replace(box, dtype=held[0].fragment.dtype) if held else box


def _pieces(move: Move) -> Iterator[Move]:
    """The move in rows of the held box, as many at a time as may be read at once."""
    box = move.box
    if not box.sizes:
        yield move
        return
    dim = next((dim for dim, size in enumerate(box.sizes) if size > 1), 0)
    row_bytes = move.held.num_bytes // max(1, math.prod(move.held.sizes[: dim + 1]))
    step = max(1, _PIECE_BYTES // max(row_bytes, 1))
    for first in range(0, box.sizes[dim], step):
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[dim] += first
        sizes[dim] = min(step, box.sizes[dim] - first)
        yield replace(move, box=box.part(tuple(offsets), tuple(sizes)))


def _read_piece(storage: Storage, place: Stored, move: Move) -> Tensor:
    first = last = 0
    for span, size in zip(move.read, move.held.sizes, strict=True):
        first = first * size + span.start
        last = last * size + span.stop - 1
    item = item_bytes(move.held.dtype)
    length = (last + 1 - first) * item
    try:
        data = storage.get_range(place.path, place.start + first * item, length)
    except FileNotFoundError:
        raise CheckpointError(f"{place.path} is missing; fetch it again") from None
    if len(data) != length:
        raise CheckpointError(f"{place.path} ends within {move.held}; fetch it again")
    dtype: torch.dtype = getattr(torch, move.held.dtype)
    flat = torch.frombuffer(bytearray(data), dtype=dtype)
    return flat.as_strided(move.box.sizes, _strides(move.held.sizes))


def _strides(sizes: Numbers) -> Numbers:
    return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
