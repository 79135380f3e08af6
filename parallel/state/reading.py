"""Reading a checkpoint back: only the ranges of the files that are wanted, all of them verified."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import check_cover, file_path, lost, read_manifest, unreadable
from remesh.parallel.state.fragments import Fragment, item_bytes, whole
from remesh.parallel.state.headers import ShardHeader, ShardPart, read_header
from remesh.parallel.state.reshard import Move, ReshardError, by_name, reshard
from remesh.parallel.state.root_manifest import CheckpointRef, ShardFile
from remesh.parallel.state.shards import bytes_of, empty
from remesh.parallel.state.storage import Blob, Storage

# Files at a time: their reads wait for the storage, not for the processor.
_NUM_READERS = 4
# Parts of a file that lie side by side are read together up to this size.
_RUN_BYTES = 32 * 2**20

Array = NDArray[np.unsignedinteger]


def read(storage: Storage, ref: CheckpointRef) -> dict[str, Tensor]:
    """Every tensor whole, on the CPU, verified.

    Cost: memory for all tensors and, for each of four files at a time, one fragment.
    Raises: CheckpointError that names the file and the cure.
    """
    headers = read_headers(storage, ref)
    wanted = {
        part.name: whole(part.name, part.global_shape, part.dtype)
        for header in headers.values()
        for part in header.fragments
    }
    tensors = _read(storage, ref, headers, list(wanted.values()))
    return {name: tensors[fragment] for name, fragment in wanted.items()}


def read_fragments(
    storage: Storage, ref: CheckpointRef, want: Sequence[Fragment]
) -> dict[Fragment, Tensor]:
    """The boxes that a rank wants, on the CPU, verified, however the writers had cut the tensors.

    Cost: the headers of all files; of each fragment that a box meets, the chunks from its first to
    its last byte. A box of rows costs little more than its own bytes; one of columns costs all its
    rows, unless the writer cut the tensor into `panels`.
    Raises: CheckpointError that names the file and the cure.
    """
    return _read(storage, ref, read_headers(storage, ref), want)


def read_headers(storage: Storage, ref: CheckpointRef) -> dict[ShardFile, ShardHeader]:
    """What each file of a checkpoint holds, proven by the manifest; all tensors are complete.

    Raises: CheckpointError that names the file and the cure.
    """
    files = read_manifest(storage, ref).files
    with ThreadPoolExecutor(_NUM_READERS) as readers:
        headers = list(readers.map(lambda file: _header(storage, ref, file), files))
    check_cover(ref, headers)
    return dict(zip(files, headers, strict=True))


def read_boxes(
    header: ShardHeader,
    moves: Iterable[Move],
    get_range: Callable[[int, int], Blob],
    targets: Mapping[Fragment, Tensor],
) -> None:
    """Fills the wanted boxes of contiguous `targets` from one shard that is no file, verified.

    `get_range(start, length)` reads its bytes.

    Raises: CheckpointError that names the fragment; what `get_range` raises.
    """
    moves = list(moves)
    arrays = {move.want: _array(targets[move.want]) for move in moves}
    for run in _runs(_needs(header, moves)):
        start, length = run[0].start, run[-1].end - run[0].start
        data = memoryview(get_range(start, length))
        for need in run:
            found = data[need.start - start : need.end - start]
            if len(found) != need.end - need.start or not _is_proven(need, found):
                raise CheckpointError(f"the hash of {need.part.fragment} is not in its header")
        _fill(arrays, run, data)


def verify(storage: Storage, ref: CheckpointRef) -> int:
    """The number of bytes of a checkpoint, after every one of them has been read and proven.

    Cost: memory for one fragment or 32 MiB. Raises: CheckpointError that names the file and the
    cure.
    """
    headers = read_headers(storage, ref)
    for file, header in headers.items():
        wholes = [_Need(part=part, start=part.start, end=part.end) for part in header.parts]
        for run in _runs(wholes):
            _bytes_of_run(storage, ref, file, run)
    return sum(file.size_bytes for file in headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """The chunks of a part that hold what some moves take out of it: [start, end) of the file."""

    part: ShardPart
    start: int
    end: int
    moves: tuple[Move, ...] = ()


def _header(storage: Storage, ref: CheckpointRef, file: ShardFile) -> ShardHeader:
    try:
        return read_header(storage, file_path(ref, file), file)
    except OSError as error:
        raise lost(ref, file.name, error) from None
    except CheckpointError as error:
        raise unreadable(ref, file.name, str(error)) from None


def _read(
    storage: Storage,
    ref: CheckpointRef,
    headers: Mapping[ShardFile, ShardHeader],
    want: Sequence[Fragment],
) -> dict[Fragment, Tensor]:
    have = by_name({file.name: header.fragments for file, header in headers.items()})
    try:
        moves = reshard(have, want, 0)
    except ReshardError as error:
        raise CheckpointError(
            f"checkpoint {ref.name} does not hold what is wanted: {error}"
        ) from None
    of_file: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        of_file[str(move.source)].append(move)
    tensors = {fragment: empty(fragment) for fragment in want}
    arrays = {fragment: _array(tensor) for fragment, tensor in tensors.items()}

    def fill(file: ShardFile) -> None:
        for run in _runs(_needs(headers[file], of_file[file.name])):
            _fill(arrays, run, _bytes_of_run(storage, ref, file, run))

    with ThreadPoolExecutor(_NUM_READERS) as readers:
        list(readers.map(fill, [file for file in headers if file.name in of_file]))
    return tensors


def _needs(header: ShardHeader, moves: Iterable[Move]) -> Iterator[_Need]:
    """In the order of the file; what lies apart in one part is read apart."""
    of_part: dict[Fragment, list[Move]] = defaultdict(list)
    for move in moves:
        of_part[move.held].append(move)
    for part in header.parts:
        need: _Need | None = None
        for move in sorted(of_part[part.fragment], key=lambda move: _span(part, move)):
            start, end = _span(part, move)
            if need and start <= need.end:
                need = replace(need, end=max(need.end, end), moves=(*need.moves, move))
                continue
            if need:
                yield need
            need = _Need(part=part, start=start, end=end, moves=(move,))
        if need:
            yield need


def _span(part: ShardPart, move: Move) -> tuple[int, int]:
    """The chunks from the first to the last byte of the box that moves, as bytes of the file."""
    start, end = _box_span(move)
    start -= start % part.chunk_bytes
    end = min(part.size_bytes, -(-end // part.chunk_bytes) * part.chunk_bytes)
    return part.start + start, part.start + end


def _box_span(move: Move) -> tuple[int, int]:
    """From the first to the last byte of the box in the bytes of the fragment that holds it."""
    first = last = 0
    for place, size in zip(move.read, move.held.sizes, strict=True):
        first = first * size + place.start
        last = last * size + place.stop - 1
    item = item_bytes(move.held.dtype)
    return first * item, (last + 1) * item


def _runs(needs: Iterable[_Need]) -> Iterator[list[_Need]]:
    run: list[_Need] = []
    for need in needs:
        if run and (need.start != run[-1].end or need.end - run[0].start > _RUN_BYTES):
            yield run
            run = []
        run.append(need)
    if run:
        yield run


def _bytes_of_run(
    storage: Storage, ref: CheckpointRef, file: ShardFile, run: Sequence[_Need]
) -> memoryview:
    start, length = run[0].start, run[-1].end - run[0].start
    try:
        data = memoryview(storage.get_range(file_path(ref, file), start, length))
    except OSError as error:
        raise lost(ref, file.name, error) from None
    if len(data) != length:
        raise unreadable(ref, file.name, f"it has not {file.size_bytes} bytes")
    for need in run:
        if not _is_proven(need, data[need.start - start : need.end - start]):
            what = f"the hash of {need.part.fragment} is not the one in its header"
            raise unreadable(ref, file.name, what)
    return data


def _is_proven(need: _Need, data: memoryview) -> bool:
    return need.part.has_chunks(need.start - need.part.start, data)


def _fill(arrays: Mapping[Fragment, Array], run: Sequence[_Need], data: memoryview) -> None:
    for need in run:
        for move in need.moves:
            # The box within the fragment's array, of which only the bytes of the run are there.
            offset = need.part.start + _box_span(move)[0] - run[0].start
            target = arrays[move.want]
            strides = _strides(move.held.sizes, target.itemsize)
            box = np.ndarray(move.box.sizes, target.dtype, data, offset, strides)
            target[move.write] = box


def _strides(sizes: Sequence[int], item: int) -> tuple[int, ...]:
    return tuple(item * math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


def _array(tensor: Tensor) -> Array:
    """The tensor's memory as whole numbers of its width: bits are copied, never values."""
    width = np.dtype(f"u{tensor.itemsize}")
    array: Array = bytes_of(tensor).view(width).reshape(tensor.shape)
    return array
