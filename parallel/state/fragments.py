"""The part of a named tensor that one rank holds, and whether parts make up whole tensors."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A box of the tensor `name`: `sizes` elements from `offsets` on, one number a dimension."""

    name: str
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: str

    @property
    def num_elements(self) -> int:
        return math.prod(self.sizes)

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


def whole(name: str, shape: tuple[int, ...], dtype: str) -> Fragment:
    return Fragment(
        name=name, global_shape=shape, offsets=(0,) * len(shape), sizes=shape, dtype=dtype
    )


def cover_problems(fragments: Iterable[Fragment]) -> tuple[str, ...]:
    """One sentence for each tensor that is not covered exactly once; empty if all are.

    Cost: n log n a tensor for n fragments cut along the first dimension.
    """
    by_name: dict[str, list[Fragment]] = defaultdict(list)
    for fragment in fragments:
        by_name[fragment.name].append(fragment)
    problems = (_problem(name, parts) for name, parts in sorted(by_name.items()))
    return tuple(problem for problem in problems if problem)


def _problem(name: str, parts: list[Fragment]) -> str:
    if len({(part.global_shape, part.dtype) for part in parts}) > 1:
        return f"the fragments of {name} disagree on its shape or dtype"
    for part in parts:
        if not part.fits:
            return f"{_box(part)} lies outside of its shape {part.global_shape}"
    twice = _overlap(parts)
    if twice:
        return f"{_box(twice[0])} overlaps {_box(twice[1])}"
    have, want = sum(part.num_elements for part in parts), math.prod(parts[0].global_shape)
    return "" if have == want else f"{name} has {have} of its {want} elements"


def _overlap(parts: list[Fragment]) -> tuple[Fragment, Fragment] | None:
    # Sorted by the first offset, a box can only meet those that begin before it ends.
    ordered = sorted((part for part in parts if part.num_elements), key=lambda part: part.offsets)
    for index, part in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if part.offsets and other.offsets[0] >= part.offsets[0] + part.sizes[0]:
                break
            if _meet(part, other):
                return part, other
    return None


def _meet(one: Fragment, other: Fragment) -> bool:
    return all(
        one.offsets[d] < other.offsets[d] + other.sizes[d]
        and other.offsets[d] < one.offsets[d] + one.sizes[d]
        for d in range(len(one.sizes))
    )


def _box(fragment: Fragment) -> str:
    spans = zip(fragment.offsets, fragment.sizes, strict=False)
    return f"{fragment.name}[{', '.join(f'{start}:{start + size}' for start, size in spans)}]"
