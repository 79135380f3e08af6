"""How the layers of a model lie on the ranks of one replica's pipeline.

The model is cut into stages, numbered from the front; a rank holds `chunks` of them. Round and
round, stage s lies on rank s % ranks, so that a microbatch passes every rank `chunks` times and
each pass is short: interleaving (Narayanan et al. 2021, arXiv:2104.04473, section 2.2). Folded, as
the letter V, it goes from the first rank to the last and back, so that the first rank has both ends
of the model (Qi et al. 2024, arXiv:2405.15362).
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from remesh.parallel.plan.errors import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """`layers` are those of each stage, by its number; without them it is as even as can be.

    Raises: LayoutError if a number is below 1, a folded pipeline has not 2 chunks a rank, or
        `layers` has not one number for each stage.
    """

    ranks: int = 1
    chunks: int = 1
    folded: bool = False
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.ranks, self.chunks) < 1:
            raise LayoutError(
                f"ranks={self.ranks} and chunks={self.chunks} are no pipeline; use 1 or more"
            )
        if self.folded and self.chunks != _ENDS:
            raise LayoutError(
                f"a folded pipeline goes there and back: chunks={self.chunks}, use {_ENDS}"
            )
        if self.layers and (len(self.layers) != self.num_stages or min(self.layers) < 1):
            raise LayoutError(
                f"layers {self.layers} are not those of {self.num_stages} stages; use "
                f"{self.num_stages} numbers, each 1 or more"
            )

    @property
    def num_stages(self) -> int:
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """The position of the rank that holds a stage."""
        if self.folded and stage >= self.ranks:
            return self.num_stages - 1 - stage
        return stage % self.ranks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """What a rank holds, from the front of the model to its end."""
        if self.folded:
            return rank, self.num_stages - 1 - rank
        return tuple(range(rank, self.num_stages, self.ranks))

    def chunk_of(self, stage: int) -> int:
        """How many stages further to the front the same rank holds."""
        return stage // self.ranks

    def spans(self, num_layers: int) -> tuple[range, ...]:
        """The blocks of each stage, counted as `block_parameters` does.

        Block 0, the embedding, goes with the first layers, and the last block, the head, with the
        last ones. Where layers do not come out even the first stages have one more: the last one
        has the head besides, which costs as much as some layers.

        Raises: LayoutError if there are fewer layers than stages, or `layers` are more or fewer.
        """
        stops = list(accumulate(self.sizes(num_layers), initial=1))
        stops[0], stops[-1] = 0, num_layers + 2
        return tuple(range(start, stop) for start, stop in pairwise(stops))

    def sizes(self, num_layers: int) -> tuple[int, ...]:
        """The number of layers of each stage. Raises: as `spans`."""
        if not self.layers:
            return self._even(num_layers)
        if sum(self.layers) != num_layers:
            raise LayoutError(
                f"layers {self.layers} add up to {sum(self.layers)}, but the model has "
                f"{num_layers}; use {self.num_stages} numbers that add up to {num_layers}"
            )
        return self.layers

    def _even(self, num_layers: int) -> tuple[int, ...]:
        length, longer = divmod(num_layers, self.num_stages)
        if not length:
            raise LayoutError(
                f"num_layers={num_layers} cannot be cut into {self.num_stages} stages, each of "
                f"which needs one; use at most {num_layers}"
            )
        return tuple(length + (stage < longer) for stage in range(self.num_stages))


_ENDS = 2
