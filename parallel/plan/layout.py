"""The degrees of a mesh as a value, and where a rank stands in it.

Four axes multiply the number of ranks: dp, pp, cp and tp. Experts take their ranks from dp·cp: ep
divides that product and adds none, since a rank that waits with its experts for the tokens of the
others has its own tokens to compute with meanwhile. (The alternative, an ep that multiplies, needs
ep times as many ranks for the dense layers' sake, or lets them compute everything ep times.)
"""

import math
from dataclasses import astuple, dataclass, fields
from typing import Literal

from remesh.parallel.plan.errors import LayoutError

Axis = Literal["dp", "pp", "cp", "tp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """A rank's position on each axis that multiplies, counted from 0."""

    dp: int
    pp: int
    cp: int
    tp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of the five axes. dp is outermost, tp innermost: ranks of a tp group are neighbours.

    Raises: LayoutError if a degree is below 1, or ep does not divide dp·cp.
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
        if self.num_data % self.ep:
            raise LayoutError(
                f"ep={self.ep} does not divide dp*cp = {self.num_data}, whose ranks it takes; "
                f"use a divisor of {self.num_data}"
            )

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.cp * self.tp

    @property
    def replicas_together(self) -> int:
        """Replicas that hold all experts of a layer between them."""
        return max(1, self.ep // self.cp)

    @property
    def num_data(self) -> int:
        """Ranks that hold the same share of the model: those whose gradients add up."""
        return self.dp * self.cp

    def coordinate(self, rank: int) -> Coordinate:
        """Position of `rank`.

        Raises: LayoutError if the layout has no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise LayoutError(f"rank {rank} is not one of the {self.world_size} ranks of {self}")
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        dp, pp = divmod(rest, self.pp)
        return Coordinate(dp=dp, pp=pp, cp=cp, tp=tp)

    def neighbours(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """The ranks that differ from `rank` at most in their position on `axis`, in its order."""
        degrees = {"tp": self.tp, "cp": self.cp, "pp": self.pp, "dp": self.dp}
        stride = math.prod(list(degrees.values())[: list(degrees).index(axis)])
        first = rank - getattr(self.coordinate(rank), axis) * stride
        return tuple(range(first, first + stride * degrees[axis], stride))

    def data(self, rank: int) -> tuple[int, ...]:
        """The ranks with the same share of the model as `rank`, by dp and then cp."""
        return tuple(
            other
            for replica in self.neighbours(rank - self.coordinate(rank).cp * self.tp, "dp")
            for other in self.neighbours(replica, "cp")
        )

    def tensor(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold a layer together with `rank`, in the order of its parts."""
        return self.neighbours(rank, "tp")

    def data_position(self, rank: int) -> int:
        """Where `rank` stands among `data(rank)`."""
        place = self.coordinate(rank)
        return place.dp * self.cp + place.cp

    def experts(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold all experts of a layer together: `ep` neighbours on dp·cp."""
        position = self.data_position(rank)
        first = position - position % self.ep
        return self.data(rank)[first : first + self.ep]

    def __str__(self) -> str:
        """The axes longer than 1, as users write them: `dp=4 tp=2`; a lone rank is `dp=1`."""
        degrees = zip(fields(self), astuple(self), strict=True)
        return " ".join(f"{axis.name}={d}" for axis, d in degrees if d > 1) or "dp=1"
