"""Ranges of a shard, read to where they are wanted and proven there.

What is wanted in the order in which it lies in the shard is read straight into the memory of who
wants it: fresh pages and a second copy cost several times as much as the reading. The rest, which
is the columns of a tensor that was written in rows, and what stands beside a box in its first and
last chunk, goes through memory that each thread uses again.

So what is wanted has been written to when a hash turns out wrong: it is nothing until all of it is
proven. A whole checkpoint is proven here too, without torch: a command that ends a run has no need
of its tensors, and loading torch takes longer than all else it does then.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import (
    check_cover,
    file_path,
    lost,
    read_manifest,
    shard_header,
    unreadable,
)
from remesh.parallel.state.fragments import Fragment, item_bytes
from remesh.parallel.state.headers import ShardHeader, ShardPart
from remesh.parallel.state.reshard import Move
from remesh.parallel.state.root_manifest import CheckpointRef, ShardFile
from remesh.parallel.state.storage import Storage

# `read_into(start, views)` fills these with the bytes from `start` on, and tells how many came.
ReadInto = Callable[[int, Sequence[memoryview]], int]
Array = NDArray[np.unsignedinteger]

# Ranges at a time: their reads wait for the storage, not for the processor.
NUM_READERS = 4
# What lies side by side is read together up to this size, and what is longer is read in pieces.
RUN_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Chunks of a part, [start, end) of the file; `landings` are where some of them are wanted.

    What is wanted in another order is copied from there by `moves`.
    """

    part: ShardPart
    start: int
    end: int
    landings: tuple[tuple[int, memoryview], ...] = ()
    moves: tuple[Move, ...] = ()


class Scratch(threading.local):
    """Memory of a thread for what is wanted by nobody as it lies."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def take(self, size_bytes: int) -> memoryview:
        if len(self._memory) < size_bytes:
            self._memory = bytearray(size_bytes)
        return memoryview(self._memory)[:size_bytes]


@dataclass(frozen=True, slots=True)
class Landing:
    """One shard, and the arrays in which its boxes are wanted. For any number of threads."""

    header: ShardHeader
    read_into: ReadInto
    arrays: Mapping[Fragment, Array] = field(default_factory=dict)
    scratch: Scratch = field(default_factory=Scratch)
    run_bytes: int = RUN_BYTES

    def runs(self, moves: Iterable[Move]) -> Iterator[list[Stretch]]:
        """What has to be read for these, in the order of the file."""
        return self._joined(map(self._landed, _needs(self.header, moves)))

    def all_runs(self) -> Iterator[list[Stretch]]:
        """Every byte of the tensors, wanted by nobody."""
        wholes = (Stretch(part=part, start=part.start, end=part.end) for part in self.header.parts)
        return self._joined(wholes)

    def land_all(self, runs: Iterable[Sequence[Stretch]]) -> None:
        """Reads and proves runs one by one. Raises as `land`, at the first that does."""
        for run in runs:
            self.land(run)

    def land(self, run: Sequence[Stretch]) -> None:
        """Reads and proves a run. Raises: CheckpointError; what `read_into` raises."""
        scratch = self.scratch.take(sum(map(_unwanted_bytes, run)))
        views = []
        for stretch in run:
            own, scratch = _views(stretch, scratch)
            views.append(own)
        length = run[-1].end - run[0].start
        if self.read_into(run[0].start, [view for own in views for view in own]) != length:
            raise CheckpointError(f"it has not {self.header.size_bytes} bytes")
        for stretch, own in zip(run, views, strict=True):
            if not stretch.part.has_chunks(stretch.start - stretch.part.start, *own):
                raise CheckpointError(
                    f"the hash of {stretch.part.fragment} is not the one in its header"
                )
            for move in stretch.moves:
                self._copy(move, stretch, own[0])

    def _joined(self, stretches: Iterable[Stretch]) -> Iterator[list[Stretch]]:
        most = self.run_bytes
        return _runs((piece for one in stretches for piece in _pieces(one, most)), most)

    def _landed(self, need: Stretch) -> Stretch:
        """With what is wanted of it as it lies there, if all of it is."""
        landings, at = [], need.start
        for move in need.moves:
            start, end = (need.part.start + place for place in _box_span(move))
            array = self.arrays[move.want]
            array = array[move.write] if move.write else array  # of a number it would be a copy
            if start < at or end - start != array.nbytes or not array.flags.c_contiguous:
                return need
            landings.append((start, array.reshape(-1).view(np.uint8).data))
            at = end
        return replace(need, landings=tuple(landings), moves=())

    def _copy(self, move: Move, stretch: Stretch, data: memoryview) -> None:
        # The box within the fragment's array, of which only the bytes of the stretch are there.
        offset = stretch.part.start + _box_span(move)[0] - stretch.start
        target = self.arrays[move.want]
        strides = _strides(move.held.sizes, target.itemsize)
        box = np.ndarray(move.box.sizes, target.dtype, data, offset, strides)
        target[move.write] = box


def read_headers(storage: Storage, ref: CheckpointRef) -> dict[ShardFile, ShardHeader]:
    """What each file of a checkpoint holds, proven by the manifest; all tensors are complete.

    Raises: CheckpointError that names the file and the cure.
    """
    files = read_manifest(storage, ref).files
    with ThreadPoolExecutor(NUM_READERS) as readers:
        headers = list(readers.map(lambda file: shard_header(storage, ref, file), files))
    check_cover(ref, headers)
    return dict(zip(files, headers, strict=True))


def verify(storage: Storage, ref: CheckpointRef) -> int:
    """The number of bytes of a checkpoint, after every one of them has been read and proven.

    Cost: memory for 32 MiB. Raises: CheckpointError that names the file and the cure.
    """
    headers, scratch = read_headers(storage, ref), Scratch()
    for file, header in headers.items():
        landing = Landing(header, reader_of(storage, ref, file), scratch=scratch)
        for run in landing.all_runs():
            land(ref, file, landing, run)
    return sum(file.size_bytes for file in headers)


def reader_of(storage: Storage, ref: CheckpointRef, file: ShardFile) -> ReadInto:
    """How a landing reads this file of a checkpoint."""
    return partial(storage.read_into, file_path(ref, file))


def land(ref: CheckpointRef, file: ShardFile, landing: Landing, run: Sequence[Stretch]) -> None:
    """Raises: CheckpointError that names the file and the cure; OSError if storage fails."""
    try:
        landing.land(run)
    except OSError as error:
        raise lost(ref, file.name, error) from None
    except CheckpointError as error:
        raise unreadable(ref, file.name, str(error)) from None


def _needs(header: ShardHeader, moves: Iterable[Move]) -> Iterator[Stretch]:
    """In the order of the file; what lies apart in one part is read apart."""
    of_part: dict[Fragment, list[Move]] = defaultdict(list)
    for move in moves:
        of_part[move.held].append(move)
    for part in header.parts:
        need: Stretch | None = None
        for move in sorted(of_part[part.fragment], key=_box_span):
            start, end = _chunk_span(part, move)
            if need and start <= need.end:
                need = replace(need, end=max(need.end, end), moves=(*need.moves, move))
                continue
            if need:
                yield need
            need = Stretch(part=part, start=start, end=end, moves=(move,))
        if need:
            yield need


def _pieces(stretch: Stretch, most_bytes: int) -> Iterator[Stretch]:
    """Of at most so many bytes, unless something has to be copied out of it as a whole."""
    step = max(most_bytes // stretch.part.chunk_bytes, 1) * stretch.part.chunk_bytes
    if stretch.moves or stretch.end - stretch.start <= step:
        yield stretch
        return
    for start in range(stretch.start, stretch.end, step):
        end = min(start + step, stretch.end)
        landings = [
            (max(at, start), view[max(start - at, 0) : max(end - at, 0)])
            for at, view in stretch.landings
        ]
        held = tuple((at, view) for at, view in landings if len(view))
        yield replace(stretch, start=start, end=end, landings=held)


def _runs(stretches: Iterable[Stretch], most_bytes: int) -> Iterator[list[Stretch]]:
    run: list[Stretch] = []
    for stretch in stretches:
        if run and (stretch.start != run[-1].end or stretch.end - run[0].start > most_bytes):
            yield run
            run = []
        run.append(stretch)
    if run:
        yield run


def _unwanted_bytes(stretch: Stretch) -> int:
    return stretch.end - stretch.start - sum(len(view) for _, view in stretch.landings)


def _views(stretch: Stretch, scratch: memoryview) -> tuple[list[memoryview], memoryview]:
    """Where its bytes go, one after the other, and the scratch that is left."""
    views, at = [], stretch.start
    for start, view in stretch.landings:
        views += [scratch[: start - at], view]
        scratch, at = scratch[start - at :], start + len(view)
    rest = stretch.end - at
    return [*views, scratch[:rest]], scratch[rest:]


def _chunk_span(part: ShardPart, move: Move) -> tuple[int, int]:
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


def _strides(sizes: Sequence[int], item: int) -> tuple[int, ...]:
    return tuple(item * math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
