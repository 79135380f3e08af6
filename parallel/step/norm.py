"""The norm of a gradient that lies in shards on many ranks, each parameter counted once."""

import math

import torch
from torch import Tensor

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.optim.clip import SquareSum, chunk_sums, in_range, largest_of, square_sum
from remesh.parallel.plan.pieces import CHUNK

_RUN = 1 << 17  # elements: a sum of so many squares in fp32 has five good digits


class GradientNorm:
    """Which chunks this rank counts, and how large a unit all ranks count in.

    Of the ranks of a tensor group that hold the same parameter the first one counts it, of the
    replicas of a shard the first one, of the ends of a pipeline that share one the first one. A
    rank that holds the whole gradient needs no other. Unless it is `exact`, squares are added in
    whatever order is fast.
    """

    def __init__(self, state: ShardState, mesh: Mesh, *, exact: bool) -> None:
        self._world = mesh.world
        parts = mesh.experts.size
        self._num_chunks = _num_chunks(state) * mesh.tensor.size * parts
        counts_all = max(mesh.tensor.size, parts) == 1 and not state.copies
        self._counted = None if counts_all else _counted(state, mesh)
        self._by_chunk = exact or self._counted is not None
        self.is_spread = max(mesh.shard.size, mesh.tensor.size, parts) > 1 or bool(mesh.pipes)
        self.counts = self.is_spread and (parts > 1 or mesh.replica.rank == 0)

    def measure(
        self, gradients: list[Tensor], sealed_step: int | None = None
    ) -> tuple[SquareSum, int | None]:
        """The sum of squares of what this rank counts; not a finite one where any rank has none.

        With it, in the same message, the least of what all ranks give as `sealed_step`; they all
        give one or none does. What other ranks count is looked at too: the copies are equal, unless
        a fault spoils one.

        Raises: Cancelled, GroupError.
        """
        sums, own = self._sums(gradients)
        told = [own] if self.is_spread else []
        told += [] if sealed_step is None else [-float(sealed_step)]
        found = self._largest(told)
        largest = found[0] if self.is_spread else own
        if self._by_chunk and not in_range(largest):  # on all ranks, or on none
            sums, own = self._sums(gradients, wide=True)
            largest = self._largest([own])[0] if self.is_spread else own
        stable_step = None if sealed_step is None else -int(found[-1])
        return square_sum(sums, largest, self._num_chunks), stable_step

    def _largest(self, told: list[float]) -> list[float]:
        """Of each number the largest of all ranks."""
        message = torch.tensor(told, dtype=torch.float64, device=self._world.device)
        if told:
            all_reduce_(self._world, message, "max")
        numbers: list[float] = message.tolist()
        return numbers

    def _sums(self, gradients: list[Tensor], *, wide: bool = False) -> tuple[Tensor, float]:
        """Those that it counts, and the largest of all that it sees."""
        by_chunk = self._by_chunk
        found = [chunk_sums(one, wide=wide) if by_chunk else _run_sums(one) for one in gradients]
        sums = torch.cat(found)
        own = largest_of(sums)
        return sums if self._counted is None else sums[self._counted], own


def _run_sums(gradient: Tensor) -> Tensor:
    """Of its squares, in whatever order is fast."""
    wide = torch.promote_types(gradient.dtype, torch.float32)
    runs = [torch.linalg.vector_norm(run, dtype=wide) for run in torch.split(gradient, _RUN)]
    return torch.stack(runs).double().square()


def _num_chunks(state: ShardState) -> int:
    """Of the whole model, in the shares of one rank of a tensor group: the same at every pp."""
    sizes = (math.prod(share.local_shape) for share in state.shares.values())
    return sum(-(-size // CHUNK) for size in sizes)


def _counted(state: ShardState, mesh: Mesh) -> Tensor:
    """A mask over the chunks of all own shards. Where experts have replicas of their own, it says
    too which replica counts.
    """
    masks = []
    for number, (bucket, shard) in enumerate(zip(state.buckets, state.shards, strict=True)):
        owned = state.owned(number)
        mask = torch.zeros(shard.values.numel() // CHUNK, dtype=torch.bool)
        replica = mesh.expert_replica if bucket.of_experts else mesh.replica
        if mesh.experts.size > 1 and replica.rank > 0:
            masks.append(mask)
            continue
        for name, place in bucket.plan.places.items():
            start, stop = max(place.start, owned.start), min(place.stop, owned.stop)
            is_first = state.shares[name].holders[0] == mesh.tensor.rank
            is_first = is_first and name not in state.copies
            if start < stop and is_first:
                mask[(start - owned.start) // CHUNK : -(-(stop - owned.start) // CHUNK)] = True
        masks.append(mask)
    return torch.cat(masks).to(state.shards[0].values.device)
