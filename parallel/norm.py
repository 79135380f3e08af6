"""The norm of a gradient that lies in shards on many ranks, each parameter counted once."""

import torch
from torch import Tensor

from remesh.parallel.collectives import all_reduce_
from remesh.parallel.mesh import Mesh
from remesh.parallel.optim.clip import SquareSum, chunk_sums, largest_of, square_sum
from remesh.parallel.pieces import CHUNK
from remesh.parallel.shard_state import ShardState


class GradientNorm:
    """Which chunks this rank counts, and how large a unit all ranks count in.

    Of the ranks of a tensor group that hold the same parameter the first one counts it, of the
    replicas of a shard the first one. A rank that holds the whole gradient needs no other. Unless
    it is `exact` a bucket's squares are added in whatever order is fast.
    """

    def __init__(self, state: ShardState, mesh: Mesh, *, exact: bool) -> None:
        self._exact = exact
        self._world = mesh.world
        self._num_chunks = sum(b.plan.size for b in state.buckets) // CHUNK * mesh.tensor.size
        self._counted = [_counted(state, bucket, mesh) for bucket in range(len(state.buckets))]
        self.is_spread = mesh.shard.size > 1 or mesh.tensor.size > 1
        self.counts = self.is_spread and mesh.replica.rank == 0

    def measure(
        self, gradients: list[Tensor], sealed_step: int | None = None
    ) -> tuple[SquareSum, int | None]:
        """The sum of squares of what this rank counts; not a finite one where any rank has none.

        With it, in the same message, the least of what all ranks give as `sealed_step`; they all
        give one or none does.

        Raises: Cancelled, GroupError.
        """
        pairs = zip(gradients, self._counted, strict=True)
        sums = torch.cat([self._sums(gradient, counted) for gradient, counted in pairs])
        own = largest_of(sums)
        told = [own] if self.is_spread else []
        told += [] if sealed_step is None else [-float(sealed_step)]
        found = self._largest(told)
        largest = found[0] if self.is_spread else own
        stable_step = None if sealed_step is None else -int(found[-1])
        return square_sum(sums, largest, self._num_chunks), stable_step

    def _largest(self, told: list[float]) -> list[float]:
        """Of each number the largest of all ranks."""
        message = torch.tensor(told, dtype=torch.float64, device=self._world.device)
        if told:
            all_reduce_(self._world, message, "max")
        numbers: list[float] = message.tolist()
        return numbers

    def _sums(self, gradient: Tensor, counted: Tensor | None) -> Tensor:
        if counted is not None:
            return chunk_sums(gradient)[counted]
        if self._exact:
            return chunk_sums(gradient)
        norm: Tensor = torch.linalg.vector_norm(gradient)
        return norm.double().square().view(1)


def _counted(state: ShardState, bucket: int, mesh: Mesh) -> Tensor | None:
    """A mask over the chunks of the own shard, None where all are counted."""
    if mesh.tensor.size == 1:
        return None
    owned = state.owned(bucket)
    mask = torch.zeros(state.shards[bucket].values.numel() // CHUNK, dtype=torch.bool)
    for name, place in state.buckets[bucket].plan.places.items():
        start, stop = max(place.start, owned.start), min(place.stop, owned.stop)
        if start < stop and state.shares[name].holders[0] == mesh.tensor.rank:
            mask[(start - owned.start) // CHUNK : -(-(stop - owned.start) // CHUNK)] = True
    return mask.to(state.shards[bucket].values.device)
