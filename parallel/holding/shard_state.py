"""What a rank owns of the state: weights and optimizer slots, one shard a bucket, by fragments.

Which part it owns is a value (plan/cut.py): two meshes in which a rank holds the same can use the
same memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remesh.parallel.holding.own_buckets import (
    copied_parameters,
    experts_of,
    own_buckets,
    parted_parameters,
)
from remesh.parallel.holding.owned import owned_fragments
from remesh.parallel.model.initial import InitialValues
from remesh.parallel.optim.optimizer import MasterShard, StateMemory
from remesh.parallel.optim.slots import SlotSpec
from remesh.parallel.plan.buckets import Bucket
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.plan.shares import tensor_shares
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment, whole
from remesh.parallel.sums.partial import PartialSpan, partial_spans

COUNT = "num_updates"


class ShardState:
    """Plans and memory for what a rank holds. Values are those of no step before `draw`.

    `spans` are the blocks of its stages, `copies` the parameters that another rank of its pipeline
    counts and writes.
    """

    def __init__(self, spec: EngineSpec, held: Held, memory: StateMemory) -> None:
        self.spec = spec
        self.held = held
        cut = held.cut
        self.shapes = parameter_shapes(spec.model)
        self.shares = tensor_shares(
            spec.model,
            cut.tensor_parts,
            held.tensor,
            sequence=spec.sequence and cut.tensor_parts > 1,
            experts=experts_of(spec.model, cut, held.expert),
        )
        pipeline = cut.pipeline
        spans = pipeline.spans(spec.model.num_layers)
        self.spans = {stage: spans[stage] for stage in pipeline.stages_of(held.stage)}
        self.copies = copied_parameters(spec.model, held)
        self.buckets = own_buckets(spec.model, held, self.shares)
        self.pieces = tuple(
            Pieces(
                size=bucket.plan.size,
                num_shards=cut.expert_shards if bucket.of_experts else cut.shards,
                num_replicas=1,
            )
            for bucket in self.buckets
        )
        self.shards = tuple(
            _shard(spec, bucket, pieces, self._number(bucket), memory)
            for bucket, pieces in zip(self.buckets, self.pieces, strict=True)
        )
        self.num_updates = torch.zeros(1, dtype=torch.int64)
        self._slots = spec.optimizer.slots
        self._dtype = str(spec.precision.master).removeprefix("torch.")
        self._holders = {
            tensor: share.holders
            for name, share in self.shares.items()
            for tensor in (name, *self._slot_tensors(name))
        }

    def owned(self, bucket: int) -> range:
        """The elements of a bucket's flat buffer that this rank owns."""
        return self.pieces[bucket].shard(self._number(self.buckets[bucket]))

    def weights(self) -> Iterator[tuple[Fragment, Tensor]]:
        """The master weights that this rank owns, as views."""
        return self._views([shard.values for shard in self.shards], self._dtype)

    def slots(self) -> Iterator[tuple[Fragment, Tensor]]:
        """What the optimizer remembers of them, slot by slot, as views."""
        for slot in self._slots:
            flats = [shard.slots[slot.name] for shard in self.shards]
            for fragment, view in self._views(flats, slot.dtype or self._dtype):
                yield replace(fragment, name=slot.tensor(fragment.name)), view

    def fragments(self) -> list[tuple[Fragment, Tensor]]:
        """All that this rank owns, as views: copy them before the next step."""
        count = whole(COUNT, tuple(self.num_updates.shape), "int64")
        return [*self.weights(), *self.slots(), (count, self.num_updates)]

    def counted(self) -> list[tuple[Fragment, Tensor]]:
        """As `fragments`, without what another stage holds too and writes."""
        copies = {tensor for name in self.copies for tensor in (name, *self._slot_tensors(name))}
        return [
            (fragment, view) for fragment, view in self.fragments() if fragment.name not in copies
        ]

    def tensor_holders(self, tensor: str) -> tuple[int, ...]:
        """The ranks of a tensor group that hold the same of this tensor."""
        return self._holders[tensor]

    @torch.no_grad()
    def draw(self, config: ModelConfig, seed: int) -> None:
        """The state at step 0: parameters from the seed, slots 0."""
        for shard in self.shards:
            for tensor in shard.tensors:
                tensor.zero_()
        self.num_updates.zero_()
        values = InitialValues(config, seed)
        for fragment, view in self.weights():
            values.fill(view, fragment)

    def parted_buckets(self) -> list[int]:
        """Those that another rank of the pipeline holds too, each with a part of the gradient."""
        parted = {one.source for one in parted_parameters(self.spec.model, self.held)}
        return [n for n, bucket in enumerate(self.buckets) if parted & bucket.plan.places.keys()]

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
            "slots": sum(slot.nbytes for shard in self.shards for slot in shard.slots.values()),
        }

    def _number(self, bucket: Bucket) -> int:
        """That of the shard that this rank owns."""
        return self.held.expert_shard if bucket.of_experts else self.held.shard

    def _slot_tensors(self, name: str) -> list[str]:
        return [slot.tensor(name) for slot in self._slots]

    def _views(self, flats: Sequence[Tensor], dtype: str) -> Iterator[tuple[Fragment, Tensor]]:
        """One flat buffer a bucket, under the names of the parameters."""
        cut = self.held.cut
        shares = self.shares if cut.tensor_parts > 1 or cut.expert_parts > 1 else None
        for number, (bucket, flat) in enumerate(zip(self.buckets, flats, strict=True)):
            owned = self.owned(number)
            for part in owned_fragments(bucket.plan, self.shapes, shares, owned, dtype):
                found = part.fragment
                yield found, flat[part.start : part.start + found.num_elements].view(found.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A rank's part of the state at a step, as some mesh asked for it."""

    state: ShardState
    at_step: int


def whole_state(
    shapes: Mapping[str, tuple[int, ...]], slots: Sequence[SlotSpec], dtype: str = "float32"
) -> list[Fragment]:
    """Every tensor of a state whose master weights have these shapes, whole."""
    weights = [whole(name, shape, dtype) for name, shape in shapes.items()]
    slotted = [
        whole(slot.tensor(name), shape, slot.dtype or dtype)
        for slot in slots
        for name, shape in shapes.items()
    ]
    return [*weights, *slotted, whole(COUNT, (1,), "int64")]


def _shard(
    spec: EngineSpec, bucket: Bucket, pieces: Pieces, shard: int, memory: StateMemory
) -> MasterShard:
    first = shard * pieces.shard_size
    num_decayed = min(max(bucket.plan.num_decayed - first, 0), pieces.shard_size)
    return MasterShard.zeros(
        pieces.shard_size, num_decayed, spec.optimizer.slots, spec.precision.master, memory
    )
