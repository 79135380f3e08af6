"""The norm of a gradient that lies in shards on many ranks, each parameter counted once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from remesh.parallel.groups.collectives import Op, all_reduce_
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.optim.clip import (
    NO_CELL,
    NOT_FINITE,
    SquareSum,
    cell_of,
    chunk_sums,
    in_range,
    square_sum,
    units_of,
)
from remesh.parallel.plan.pieces import CHUNK

_RUN = 1 << 17  # elements: a sum of so many squares in fp32 has five good digits


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSquares:
    """Chunk sums of what one rank counts, their cell, and their sum in units of the `expected` one,
    in which all ranks give it: with luck it is the cell of all of them.
    """

    gradients: list[Tensor]
    sums: Tensor
    cell: int
    units: int


class GradientNorm:
    """Each rank counts a piece: of ranks that hold the same shard each one looks at a part of it.

    Of the ranks of a tensor group that hold the same parameter the first one counts it, of the ends
    of a pipeline that share one the first one. Unless it is `exact`, squares are added in whatever
    order is fast.
    """

    def __init__(self, state: ShardState, mesh: Mesh, *, exact: bool) -> None:
        self._world = mesh.world
        parts = mesh.experts.size
        self._num_chunks = _num_chunks(state) * mesh.tensor.size * parts
        self._spans = _own_spans(state, mesh)
        counts_all = max(mesh.tensor.size, parts) == 1 and not state.copies
        self._counted = None if counts_all else _counted(state, mesh, self._spans)
        self._by_chunk = exact or self._counted is not None
        self._expected = 0

    def measure(self, gradients: list[Tensor]) -> OwnSquares:
        """What this rank counts of the gradient. What is not finite is told by the cell."""
        return self._measured(gradients, self._expected, wide=False)

    def total(self, own: OwnSquares, cell: int, units: int) -> SquareSum:
        """The sum of squares, out of the largest cell and the sum of the units of all ranks.

        Cost: nothing; one more message where the cell is another than in the step before, and two
        where fp32 has no room for squares.
        Raises: Cancelled, GroupError.
        """
        again = self._by_chunk and not in_range(cell)
        if again:
            own = self._measured(own.gradients, None, wide=True)
            cell = self._over_all(own.cell, "max")
        if cell not in (NOT_FINITE, NO_CELL) and (again or cell != self._expected):
            units = self._over_all(units_of(own.sums, cell, self._num_chunks), "sum")
            self._expected = cell
        return square_sum(units, cell, self._num_chunks)

    def _measured(self, gradients: list[Tensor], expected: int | None, *, wide: bool) -> OwnSquares:
        pieces = [one[span] for one, span in zip(gradients, self._spans, strict=True)]
        by_chunk = self._by_chunk
        found = [chunk_sums(one, wide=wide) if by_chunk else _run_sums(one) for one in pieces]
        sums = torch.cat(found)
        seen = cell_of(sums)
        sums = sums if self._counted is None else sums[self._counted]
        units = 0
        if expected is not None and seen <= expected:
            units = units_of(sums, expected, self._num_chunks)
        return OwnSquares(gradients=gradients, sums=sums, cell=seen, units=units)

    def _over_all(self, number: int, op: Op) -> int:
        message = torch.tensor([number], dtype=torch.int64, device=self._world.device)
        all_reduce_(self._world, message, op)
        return int(message)


def _run_sums(gradient: Tensor) -> Tensor:
    """Of its squares, in whatever order is fast."""
    wide = torch.promote_types(gradient.dtype, torch.float32)
    runs = [torch.linalg.vector_norm(run, dtype=wide) for run in torch.split(gradient, _RUN)]
    return torch.stack(runs).double().square()


def _num_chunks(state: ShardState) -> int:
    """Of the whole model, in the shares of one rank of a tensor group: the same at every pp."""
    sizes = (math.prod(share.local_shape) for share in state.shares.values())
    return sum(-(-size // CHUNK) for size in sizes)


def _own_spans(state: ShardState, mesh: Mesh) -> list[slice]:
    """Of each own shard the elements that this one of its replicas counts."""
    spans = []
    for bucket, shard in zip(state.buckets, state.shards, strict=True):
        replica = mesh.expert_replica if bucket.of_experts else mesh.replica
        num_chunks = shard.values.numel() // CHUNK
        first = replica.rank * num_chunks // replica.size
        last = (replica.rank + 1) * num_chunks // replica.size
        spans.append(slice(first * CHUNK, last * CHUNK))
    return spans


def _counted(state: ShardState, mesh: Mesh, spans: list[slice]) -> Tensor:
    """A mask over the chunks of all own spans."""
    masks = []
    for number, (bucket, shard) in enumerate(zip(state.buckets, state.shards, strict=True)):
        owned = state.owned(number)
        mask = torch.zeros(shard.values.numel() // CHUNK, dtype=torch.bool)
        for name, place in bucket.plan.places.items():
            start, stop = max(place.start, owned.start), min(place.stop, owned.stop)
            is_first = state.shares[name].holders[0] == mesh.tensor.rank
            is_first = is_first and name not in state.copies
            if start < stop and is_first:
                mask[(start - owned.start) // CHUNK : -(-(stop - owned.start) // CHUNK)] = True
        masks.append(mask[spans[number].start // CHUNK : spans[number].stop // CHUNK])
    return torch.cat(masks).to(state.shards[0].values.device)
