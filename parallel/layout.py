"""The degrees of a mesh as a value, and where a rank stands in it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of the five axes. The dp axis is outermost, tp innermost: ranks of one tp group are neighbours."""

    dp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.cp * self.ep * self.tp
