"""What a rank owns of the state: master weights and moments, one shard a bucket, by fragments.

Which part it owns is a value (plan/cut.py): two meshes in which a rank holds the same can use the
same memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from remesh.parallel.model.initial import initial_value
from remesh.parallel.model.model_blocks import shared_parameters
from remesh.parallel.optim.adamw import Shard
from remesh.parallel.plan.buckets import Bucket, plan_buckets
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.model_config import ModelConfig, block_parameters, parameter_shapes
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.plan.shares import Share, tensor_shares
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment, whole
from remesh.parallel.state.owned import owned_fragments
from remesh.parallel.sums.partial import PartialSpan, partial_spans

MOMENTS = ("exp_avg.", "exp_avg_sq.")
COUNT = "num_updates"


class ShardState:
    """Plans and memory for what a rank holds. Values are those of no step before `draw`."""

    def __init__(self, spec: EngineSpec, held: Held, device: torch.device) -> None:
        self.spec = spec
        self.held = held
        cut = held.cut
        self.shapes = parameter_shapes(spec.model)
        self.shares = tensor_shares(
            spec.model, cut.tp, held.tensor, sequence=spec.sequence and cut.tp > 1
        )
        self.buckets = _buckets(spec, self.shares, cut.bucket_elements)
        self.pieces = tuple(
            Pieces(size=b.plan.size, num_shards=cut.shards, num_replicas=1) for b in self.buckets
        )
        self.shards = tuple(
            _shard(bucket, pieces, held.shard, spec.precision.master, device)
            for bucket, pieces in zip(self.buckets, self.pieces, strict=True)
        )
        self.num_updates = torch.zeros(1, dtype=torch.int64)
        self._dtype = str(spec.precision.master).removeprefix("torch.")

    def owned(self, bucket: int) -> range:
        """The elements of a bucket's flat buffer that this rank owns."""
        return self.pieces[bucket].shard(self.held.shard)

    def weights(self) -> Iterator[tuple[Fragment, Tensor]]:
        """The master weights that this rank owns, as views."""
        return self._views("", [shard.values for shard in self.shards])

    def moments(self) -> Iterator[tuple[Fragment, Tensor]]:
        yield from self._views(MOMENTS[0], [shard.exp_avg for shard in self.shards])
        yield from self._views(MOMENTS[1], [shard.exp_avg_sq for shard in self.shards])

    def fragments(self) -> list[tuple[Fragment, Tensor]]:
        """All that this rank owns, as views: copy them before the next step."""
        count = whole(COUNT, tuple(self.num_updates.shape), "int64")
        return [*self.weights(), *self.moments(), (count, self.num_updates)]

    def tensor_holders(self, name: str) -> tuple[int, ...]:
        """The ranks of a tensor group that hold the same of this tensor."""
        return self.shares[name.removeprefix(MOMENTS[0]).removeprefix(MOMENTS[1])].holders

    @torch.no_grad()
    def draw(self, config: ModelConfig, seed: int) -> None:
        """The state at step 0: parameters from the seed, moments 0."""
        for shard in self.shards:
            for tensor in (shard.values, shard.exp_avg, shard.exp_avg_sq):
                tensor.zero_()
        self.num_updates.zero_()
        drawn = ("", torch.empty(0))
        for fragment, view in self.weights():
            name = fragment.name
            if drawn[0] != name:
                drawn = (name, initial_value(config, seed, name, self.shapes[name]))
            view.copy_(drawn[1][fragment.in_whole])

    def names(self) -> list[str]:
        """Of all tensors of the whole state."""
        return [*(prefix + name for prefix in ("", *MOMENTS) for name in self.shapes), COUNT]

    def partial_spans(self) -> list[PartialSpan]:
        """What has to be summed over a tensor group."""
        return [
            span
            for number, bucket in enumerate(self.buckets)
            for span in partial_spans(number, bucket.plan, self.owned(number), self.shares)
        ]

    def held_bytes(self) -> dict[str, int]:
        return {
            "master": sum(shard.values.nbytes for shard in self.shards),
            "moments": sum(s.exp_avg.nbytes + s.exp_avg_sq.nbytes for s in self.shards),
        }

    def _views(self, prefix: str, flats: list[Tensor]) -> Iterator[tuple[Fragment, Tensor]]:
        shares = self.shares if self.held.cut.tp > 1 else None
        for number, (bucket, flat) in enumerate(zip(self.buckets, flats, strict=True)):
            parts = owned_fragments(
                bucket.plan, self.shapes, shares, self.owned(number), self._dtype
            )
            for part in parts:
                found = part.fragment
                named = Fragment(
                    name=prefix + found.name,
                    global_shape=found.global_shape,
                    offsets=found.offsets,
                    sizes=found.sizes,
                    dtype=found.dtype,
                )
                yield named, flat[part.start : part.start + found.num_elements].view(found.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A rank's part of the state at a step, as some mesh asked for it."""

    state: ShardState
    at_step: int


def _buckets(spec: EngineSpec, shares: dict[str, Share], max_elements: int) -> tuple[Bucket, ...]:
    blocks = [
        {name: shares[name].local_shape for name in names}
        for names in block_parameters(spec.model).values()
    ]
    owners = {shared.owner for shared in shared_parameters(spec.model)}
    return plan_buckets(blocks, max_elements, owners)


def _shard(
    bucket: Bucket, pieces: Pieces, shard: int, dtype: torch.dtype, device: torch.device
) -> Shard:
    first = shard * pieces.shard_size
    num_decayed = min(max(bucket.plan.num_decayed - first, 0), pieces.shard_size)
    return Shard.zeros(pieces.shard_size, num_decayed, dtype, device)
