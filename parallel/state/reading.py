"""Reading a checkpoint back: only the ranges of the files that are wanted, all of them verified."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
from torch import Tensor

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.fragments import Fragment, whole
from remesh.parallel.state.headers import ShardHeader
from remesh.parallel.state.landing import (
    NUM_READERS,
    Array,
    Landing,
    Scratch,
    land,
    read_headers,
    reader_of,
)
from remesh.parallel.state.reshard import Move, ReshardError, by_name, reshard
from remesh.parallel.state.root_manifest import CheckpointRef, ShardFile
from remesh.parallel.state.shards import bytes_of, empty
from remesh.parallel.state.storage import Storage


def read(storage: Storage, ref: CheckpointRef) -> dict[str, Tensor]:
    """Every tensor whole, on the CPU, verified.

    Cost: memory for all tensors. Raises: CheckpointError that names the file and the cure.
    """
    headers = read_headers(storage, ref)
    wanted = {
        part.name: whole(part.name, part.global_shape, part.dtype)
        for header in headers.values()
        for part in header.fragments
    }
    tensors = {fragment: empty(fragment) for fragment in wanted.values()}
    _read(storage, ref, headers, tensors)
    return {name: tensors[fragment] for name, fragment in wanted.items()}


def read_fragments(
    storage: Storage, ref: CheckpointRef, want: Sequence[Fragment]
) -> dict[Fragment, Tensor]:
    """The boxes that a rank wants, in memory of their own. Cost and errors as of `read_into`."""
    tensors = {fragment: empty(fragment) for fragment in want}
    read_into(storage, ref, tensors)
    return tensors


def read_into(storage: Storage, ref: CheckpointRef, targets: Mapping[Fragment, Tensor]) -> None:
    """Fills the boxes that a rank wants, verified, however the writers had cut the tensors.

    The targets are contiguous and on the CPU. What stands in them when this raises is nothing.

    Cost: the headers of all files; of each fragment that a box meets, the chunks from its first to
    its last byte. A box of rows costs little more than its own bytes; one of columns costs all its
    rows, unless the writer cut the tensor into `panels`.
    Raises: CheckpointError that names the file and the cure.
    """
    _read(storage, ref, read_headers(storage, ref), targets)


class RangeSource(Protocol):
    """A shard that is no file."""

    def read_into(self, start: int, into: Sequence[memoryview]) -> int:
        """Fills these, one after the other, with the bytes from `start` on. Raises: OSError."""
        ...

    @property
    def num_readers(self) -> int:
        """How many may read at once."""
        ...

    @property
    def run_bytes(self) -> int:
        """How much to read at once, where it lies side by side."""
        ...


def read_boxes(
    header: ShardHeader,
    moves: Iterable[Move],
    source: RangeSource,
    targets: Mapping[Fragment, Tensor],
) -> None:
    """Fills the wanted boxes of contiguous `targets` from one shard, verified.

    What stands in the targets when this raises is nothing.
    Raises: CheckpointError that names the fragment; what the source raises.
    """
    moves = list(moves)
    arrays = {move.want: _array(targets[move.want]) for move in moves}
    landing = Landing(header, source.read_into, arrays, run_bytes=source.run_bytes)
    runs, num_readers = list(landing.runs(moves)), source.num_readers
    with ThreadPoolExecutor(num_readers) as readers:
        # A task a reader: one a run costs as much as the run where runs are short.
        shares = (runs[number::num_readers] for number in range(num_readers))
        list(readers.map(landing.land_all, shares))


def _read(
    storage: Storage,
    ref: CheckpointRef,
    headers: Mapping[ShardFile, ShardHeader],
    targets: Mapping[Fragment, Tensor],
) -> None:
    have = by_name({file.name: header.fragments for file, header in headers.items()})
    try:
        moves = reshard(have, targets, 0)
    except ReshardError as error:
        raise CheckpointError(
            f"checkpoint {ref.name} does not hold what is wanted: {error}"
        ) from None
    of_file: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        of_file[str(move.source)].append(move)
    arrays, scratch = {fragment: _array(target) for fragment, target in targets.items()}, Scratch()
    work = [
        (ref, file, landing, run)
        for file in headers
        if file.name in of_file
        for landing in [Landing(headers[file], reader_of(storage, ref, file), arrays, scratch)]
        for run in landing.runs(of_file[file.name])
    ]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        list(readers.map(land, *zip(*work, strict=True)) if work else ())


def _array(tensor: Tensor) -> Array:
    """The tensor's memory as whole numbers of its width: bits are copied, never values."""
    width = np.dtype(f"u{tensor.itemsize}")
    array: Array = bytes_of(tensor).view(width).reshape(tensor.shape)
    return array
