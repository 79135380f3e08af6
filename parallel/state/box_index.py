"""Finds, among thousands of boxes of one tensor, those that meet a given one.

Boxes are grouped into slabs that begin and end alike in the dimension that cuts the tensor finest;
a slab of many boxes is indexed again in the other dimensions. Slabs are kept apart by the power of
two of their length, since one whole tensor among slices would make every search begin at row 0.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from remesh.parallel.state.fragments import Fragment, sweep_dim

# Below this many boxes looking at each is faster than another level.
_FEW = 8

_Numbered = tuple[int, Fragment]


class BoxIndex:
    """Cost: n log n to make; a search looks at little more than it finds."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        numbered = sorted(enumerate(fragments), key=lambda pair: pair[1].offsets)
        numbered = [pair for pair in numbered if pair[1].num_elements]
        self._numbers = [number for number, _ in numbered]
        ordered = [(place, fragment) for place, (_, fragment) in enumerate(numbered)]
        dims = tuple(range(len(ordered[0][1].sizes))) if ordered else ()
        self._slab = _slab(ordered, dims)

    def meeting(self, want: Fragment) -> list[_Numbered]:
        """The number of each fragment that shares elements with `want`, and which; by offset."""
        near = self._slab.near(want) if isinstance(self._slab, _Slabs) else self._slab
        found = [(place, common) for place, fragment in near if (common := want.meet(fragment))]
        found.sort(key=lambda pair: pair[0])
        return [(self._numbers[place], common) for place, common in found]


class _Slabs:
    def __init__(self, boxes: Sequence[_Numbered], dims: tuple[int, ...]) -> None:
        self._dim = sweep_dim([fragment for _, fragment in boxes], dims)
        others = tuple(dim for dim in dims if dim != self._dim)
        slabs: dict[tuple[int, int], list[_Numbered]] = defaultdict(list)
        for box in boxes:
            slabs[self._span(box[1])].append(box)
        classes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for span in sorted(slabs):
            classes[span[1].bit_length()].append(span)
        self._classes = [
            (
                1 << bits,
                [start for start, _ in spans],
                [_slab(slabs[span], others) for span in spans],
            )
            for bits, spans in classes.items()
        ]

    def near(self, want: Fragment) -> Iterator[_Numbered]:
        """All that meet `want`, and some that do not."""
        start, size = self._span(want)
        for longest, starts, slabs in self._classes:
            first, end = bisect_left(starts, start - longest), bisect_left(starts, start + size)
            for slab in slabs[first:end]:
                yield from slab.near(want) if isinstance(slab, _Slabs) else slab

    def _span(self, fragment: Fragment) -> tuple[int, int]:
        return fragment.offsets[self._dim], fragment.sizes[self._dim]


def _slab(boxes: Sequence[_Numbered], dims: tuple[int, ...]) -> _Slabs | Sequence[_Numbered]:
    return _Slabs(boxes, dims) if dims and len(boxes) > _FEW else boxes
