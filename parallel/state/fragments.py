"""The part of a named tensor that one rank holds, and whether parts make up whole tensors.

A fragment is a box. What ZeRO gives a rank is a range of a flattened tensor instead, which is cut
into boxes here (`flat_boxes`): a range means something only beside the shape that was flattened,
which changes with the tensor-parallel degree, whereas boxes of different layouts can be compared.
"""

import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Numbers = tuple[int, ...]

# Above this the two that overlap are not looked for: that compares all of them in the worst case.
_FEW_ENOUGH = 4096
_MOST_DIMENSIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A box of the tensor `name`: `sizes` elements from `offsets` on, one number a dimension."""

    name: str
    global_shape: Numbers
    offsets: Numbers
    sizes: Numbers
    dtype: str

    @property
    def num_elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.sizes) * item_bytes(self.dtype)

    @property
    def is_whole(self) -> bool:
        return self.sizes == self.global_shape

    @property
    def fits(self) -> bool:
        """Whether the box lies inside its tensor."""
        ranks = {len(self.global_shape), len(self.offsets), len(self.sizes)}
        return len(ranks) == 1 and all(
            min(offset, size) >= 0 and offset + size <= extent
            for offset, size, extent in zip(
                self.offsets, self.sizes, self.global_shape, strict=True
            )
        )

    def part(self, offsets: Numbers, sizes: Numbers) -> "Fragment":
        """Another box of the same tensor."""
        return Fragment(
            name=self.name,
            global_shape=self.global_shape,
            offsets=offsets,
            sizes=sizes,
            dtype=self.dtype,
        )

    def meet(self, other: "Fragment") -> "Fragment | None":
        """What both boxes of one tensor hold; None if that is not a single element."""
        offsets, sizes = [], []
        for start, size, other_start, other_size in zip(
            self.offsets, self.sizes, other.offsets, other.sizes, strict=True
        ):
            first = max(start, other_start)
            length = min(start + size, other_start + other_size) - first
            if length <= 0:
                return None
            offsets.append(first)
            sizes.append(length)
        return self.part(tuple(offsets), tuple(sizes))

    def slices(self, box: "Fragment") -> tuple[slice, ...]:
        """Where `box`, which lies inside this fragment, stands in the fragment's own array."""
        return tuple(
            slice(inner - outer, inner - outer + size)
            for inner, outer, size in zip(box.offsets, self.offsets, box.sizes, strict=True)
        )

    @property
    def in_whole(self) -> tuple[slice, ...]:
        """Where it stands in the array of the whole tensor."""
        return tuple(
            slice(start, start + size) for start, size in zip(self.offsets, self.sizes, strict=True)
        )

    def __str__(self) -> str:
        spans = zip(self.offsets, self.sizes, strict=False)
        return f"{self.name}[{', '.join(f'{start}:{start + size}' for start, size in spans)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatBox:
    """A box of a full tensor whose elements follow one another in a rank's flattened tensor.

    It is `flat[flat_offset : flat_offset + num_elements].view(sizes)`.
    """

    offsets: Numbers
    sizes: Numbers
    flat_offset: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.sizes)


def whole(name: str, shape: Numbers, dtype: str) -> Fragment:
    return Fragment(
        name=name, global_shape=shape, offsets=(0,) * len(shape), sizes=shape, dtype=dtype
    )


@functools.cache
def item_bytes(dtype: str) -> int:
    """Bytes an element, by the bits that the name of the dtype tells: float32, float8_e4m3fn."""
    bits = re.search(r"\d+", dtype)
    return int(bits.group()) // 8 if bits else 1


def flat_boxes(
    global_shape: Numbers, box_offsets: Numbers, local_shape: Numbers, start: int, stop: int
) -> list[FlatBox]:
    """The elements [start, stop) of a rank's flattened tensor as boxes of the full one, in order.

    The fewest boxes: at most twice the dimensions less one. The rank's tensor is the box of
    `local_shape` at `box_offsets`; its rows beyond the full tensor are padding and in no box.
    """
    sizes = _without_padding(global_shape, box_offsets, local_shape)
    stop = min(stop, math.prod(sizes))
    boxes = []
    while start < stop:
        box = _longest_box(box_offsets, sizes, start, stop)
        boxes.append(box)
        start += box.num_elements
    return boxes


def sweep_dim(parts: Sequence[Fragment], dims: Iterable[int]) -> int:
    """The one of `dims` in which parts of a tensor are shortest: sorted by it, few can overlap."""
    shape = parts[0].global_shape
    return min(dims, key=lambda dim: sum(part.sizes[dim] for part in parts) / shape[dim])


def cover_problems(fragments: Iterable[Fragment]) -> tuple[str, ...]:
    """One sentence for each tensor that is not covered exactly once; empty if all are.

    Cost: linear for a tensor that is, and for one of more than 4,096 fragments.
    """
    by_name: dict[str, list[Fragment]] = defaultdict(list)
    for fragment in fragments:
        by_name[fragment.name].append(fragment)
    problems = (_problem(name, parts) for name, parts in sorted(by_name.items()))
    return tuple(problem for problem in problems if problem)


def _without_padding(global_shape: Numbers, box_offsets: Numbers, local_shape: Numbers) -> Numbers:
    if not global_shape:
        return ()
    rows = max(0, min(local_shape[0], global_shape[0] - box_offsets[0]))
    return (rows, *local_shape[1:])


def _longest_box(offsets: Numbers, sizes: Numbers, start: int, stop: int) -> FlatBox:
    """The longest box that begins with element `start` of the flattened `sizes`."""
    stride, place = math.prod(sizes), offsets
    for dim, size in enumerate(sizes):
        stride //= size
        index = start // stride % size
        place = (*place[:dim], offsets[dim] + index, *offsets[dim + 1 :])
        if start % stride == 0 and start + stride <= stop:
            length = min((stop - start) // stride, size - index)
            sizes = (*(1,) * dim, length, *sizes[dim + 1 :])
            break
    return FlatBox(offsets=place, sizes=sizes, flat_offset=start)


def _problem(name: str, parts: list[Fragment]) -> str:
    if len({(part.global_shape, part.dtype) for part in parts}) > 1:
        return f"the fragments of {name} disagree on its shape or dtype"
    for part in parts:
        if not part.fits:
            return f"{part} lies outside of its shape {part.global_shape}"
    if len(parts[0].sizes) > _MOST_DIMENSIONS:
        return f"{name} has {len(parts[0].sizes)} dimensions, not up to {_MOST_DIMENSIONS}"
    full = [part for part in parts if part.num_elements]
    have, want = sum(part.num_elements for part in full), math.prod(parts[0].global_shape)
    if have == want and _is_tiled(full, parts[0].global_shape):
        return ""
    twice = _overlap(full) if len(full) <= _FEW_ENOUGH else None
    if twice:
        return f"{twice[0]} overlaps {twice[1]}"
    seen = "" if have != want else ", some of them twice"
    return f"{name} has {have} of its {want} elements{seen}"


def _is_tiled(parts: Sequence[Fragment], shape: Numbers) -> bool:
    """Whether boxes inside a tensor, of as many elements as it has, cover each of them once.

    Corners tell it: each box adds its own to a set, or takes those away that are in it. What is
    left are the corners of all elements that an odd number of boxes cover. If these are those of
    the tensor, each element is covered at least once, and then no more than once.
    """
    corners: set[Numbers] = set()
    for part in parts:
        spans = zip(part.offsets, part.sizes, strict=True)
        corners ^= set(itertools.product(*((start, start + size) for start, size in spans)))
    return corners == set(itertools.product(*((0, extent) for extent in shape))) or not parts


def _overlap(parts: Sequence[Fragment]) -> tuple[Fragment, Fragment] | None:
    # Sorted by the offset in one dimension, a box only meets those that begin before it ends.
    dim = sweep_dim(parts, range(len(parts[0].sizes))) if parts and parts[0].sizes else 0
    ordered = sorted(parts, key=lambda part: (part.offsets[dim:], part.offsets))
    for index, part in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if part.offsets and other.offsets[dim] >= part.offsets[dim] + part.sizes[dim]:
                break
            if part.meet(other):
                return part, other
    return None
