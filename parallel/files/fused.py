"""Tensors that others keep in one piece (qkv, gate and up), as fragments of the logical tensors.

A fused tensor cut by bytes puts rows of the query beside rows of the gate as soon as the number of
ranks changes. So fragments of it are first named by what they mean, with `split`; a plan knows
only the logical tensors, and `join` tells where a box of one of them stands in the fused tensor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.state.fragments import Fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One and the same box, in the fused tensor and in the logical one."""

    fused: Fragment
    part: Fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """`name` is made of `parts`, logical tensor to rows, one below the other within each group.

    One group is all of the query, then the key, then the value. As many groups as heads (or as
    key-value heads, with the queries that share one) is qkv interleaved per head. As many groups
    as tensor-parallel ranks is what ranks that fuse their shares make together.

    Raises: LayoutError if the rows of a part are no multiple of the groups.
    """

    name: str
    parts: Mapping[str, int]
    groups: int = 1

    def __post_init__(self) -> None:
        for part, rows in self.parts.items():
            if self.groups < 1 or rows < 1 or rows % self.groups:
                raise LayoutError(
                    f"{part} has {rows} rows, which {self.groups} groups of {self.name} cannot "
                    "share; use a number of groups that divides the rows of every part"
                )

    @property
    def num_rows(self) -> int:
        return sum(self.parts.values())

    def split(self, fragment: Fragment) -> list[Piece]:
        """The pieces of a fragment of the fused tensor, by row of it."""
        _check(fragment, {self.name: self.num_rows})
        pieces = []
        for group in _groups(fragment, self.num_rows // self.groups):
            for part, fused_row, part_row, rows in self._runs(group):
                box = _rows_of(fragment, fused_row, rows)
                if box:
                    part_box = _renamed(box, part, self.parts[part], part_row - fused_row)
                    pieces.append(Piece(fused=box, part=part_box))
        return pieces

    def join(self, fragment: Fragment) -> list[Piece]:
        """The pieces of a fragment of one of the logical tensors, by row of it."""
        name = fragment.name
        _check(fragment, self.parts)
        pieces = []
        for group in _groups(fragment, self.parts[name] // self.groups):
            for part, fused_row, part_row, rows in self._runs(group):
                box = _rows_of(fragment, part_row, rows) if part == name else None
                if box:
                    fused_box = _renamed(box, self.name, self.num_rows, fused_row - part_row)
                    pieces.append(Piece(fused=fused_box, part=box))
        return pieces

    def _runs(self, group: int) -> Iterator[tuple[str, int, int, int]]:
        """The parts in one group: name, first row in the fused and in the logical tensor, rows."""
        fused_row = group * (self.num_rows // self.groups)
        for part, part_rows in self.parts.items():
            rows = part_rows // self.groups
            yield part, fused_row, group * rows, rows
            fused_row += rows


def _check(fragment: Fragment, tensors: Mapping[str, int]) -> None:
    if fragment.global_shape[:1] != (tensors.get(fragment.name),):
        known = ", ".join(f"{name} of {rows} rows" for name, rows in tensors.items())
        raise LayoutError(
            f"{fragment} of shape {fragment.global_shape} is not part of {known}; "
            "describe the fused tensor with the names and rows that it has"
        )


def _groups(fragment: Fragment, group_rows: int) -> range:
    start, stop = fragment.offsets[0], fragment.offsets[0] + fragment.sizes[0]
    return range(start // group_rows, -(-stop // group_rows))


def _rows_of(fragment: Fragment, start: int, rows: int) -> Fragment | None:
    return fragment.meet(fragment.part((start, *fragment.offsets[1:]), (rows, *fragment.sizes[1:])))


def _renamed(box: Fragment, name: str, num_rows: int, shift: int) -> Fragment:
    return replace(
        box,
        name=name,
        global_shape=(num_rows, *box.global_shape[1:]),
        offsets=(box.offsets[0] + shift, *box.offsets[1:]),
    )
