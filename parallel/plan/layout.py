"""The degrees of a mesh as a value, and where a rank stands in it.

Every axis multiplies the number of ranks, ep and cp too: dp counts whole copies of the model, so
that "how many ranks does this need" is one product and never a matter of which axis borrows from
which. (The alternative, ep and cp carved out of dp, makes half the legal-looking layouts illegal.)
"""

import math
from dataclasses import astuple, dataclass, fields
from typing import Literal

from remesh.parallel.plan.errors import LayoutError

Axis = Literal["dp", "pp", "cp", "ep", "tp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """A rank's position on each axis, counted from 0."""

    dp: int
    pp: int
    cp: int
    ep: int
    tp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of the five axes. dp is outermost, tp innermost: ranks of a tp group are neighbours.

    Raises: LayoutError if a degree is below 1.
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        for axis, degree in zip(fields(self), astuple(self), strict=True):
            if degree < 1:
                raise LayoutError(f"{axis.name}={degree} is no degree; use 1 or more")

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.cp * self.ep * self.tp

    def coordinate(self, rank: int) -> Coordinate:
        """Position of `rank`.

        Raises: LayoutError if the layout has no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise LayoutError(f"rank {rank} is not one of the {self.world_size} ranks of {self}")
        rest, tp = divmod(rank, self.tp)
        rest, ep = divmod(rest, self.ep)
        rest, cp = divmod(rest, self.cp)
        dp, pp = divmod(rest, self.pp)
        return Coordinate(dp=dp, pp=pp, cp=cp, ep=ep, tp=tp)

    def neighbours(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """The ranks that differ from `rank` at most in their position on `axis`, in its order."""
        degrees = {"tp": self.tp, "ep": self.ep, "cp": self.cp, "pp": self.pp, "dp": self.dp}
        stride = math.prod(list(degrees.values())[: list(degrees).index(axis)])
        first = rank - getattr(self.coordinate(rank), axis) * stride
        return tuple(range(first, first + stride * degrees[axis], stride))

    def state_part(self, rank: int, shard_size: int) -> tuple[int, int]:
        """Which part of the state a rank holds: of tp's parts, and of that one's shards.

        `shard_size` neighbouring replicas hold one copy of it together.
        """
        place = self.coordinate(rank)
        return place.tp, place.dp % shard_size

    def __str__(self) -> str:
        """The axes longer than 1, as users write them: `dp=4 tp=2`; a lone rank is `dp=1`."""
        degrees = zip(fields(self), astuple(self), strict=True)
        return " ".join(f"{axis.name}={d}" for axis, d in degrees if d > 1) or "dp=1"


def infer_layout(
    world_size: int, *, dp: int | None = None, pp: int = 1, cp: int = 1, ep: int = 1, tp: int = 1
) -> Layout:
    """The layout that uses `world_size` ranks exactly; `dp=None` takes what the others leave.

    Raises: LayoutError if the degrees do not multiply out, with both numbers in the message.
    """
    if world_size < 1:
        raise LayoutError(f"a mesh of {world_size} ranks is none; it needs 1 or more")
    others = Layout(pp=pp, cp=cp, ep=ep, tp=tp)
    if dp is None and world_size % others.world_size:
        raise LayoutError(
            f"{world_size} ranks are not a multiple of {_product(others)}; "
            f"use a multiple of {others.world_size} ranks or smaller degrees"
        )
    chosen = world_size // others.world_size if dp is None else dp
    layout = Layout(dp=chosen, pp=pp, cp=cp, ep=ep, tp=tp)
    if layout.world_size != world_size:
        raise LayoutError(
            f"{_product(layout)} ranks are needed, {world_size} are there; {_cure(layout)}"
        )
    return layout


def _product(layout: Layout) -> str:
    factors = "*".join(str(layout).split())
    return f"{factors} = {layout.world_size}"


def _cure(layout: Layout) -> str:
    rest = math.prod((layout.pp, layout.cp, layout.ep, layout.tp))
    return f"use dp = ranks / {rest}, or leave dp out to have it inferred"
