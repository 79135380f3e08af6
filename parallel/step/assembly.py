"""Everything that a rank computes with in one mesh, put together around the state that it owns."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.model.linear import InPlaceGradient
from remesh.parallel.model.maths import Maths, Whole
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.plan.buckets import Place, plan_visits, take_turns
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.plan.schedules import Portion, contiguous_portion, streamed_portion
from remesh.parallel.spec import EngineSpec
from remesh.parallel.step.passes import Passes
from remesh.parallel.sums.gradients import Accumulators, GradientSum, Slot
from remesh.parallel.sums.plain_sum import PlainSum, StreamedPlainSum
from remesh.parallel.sums.tree import StreamedTreeSum, TreeSum
from remesh.parallel.sums.workspace import Workspace
from remesh.parallel.techniques.tensor import TensorParallel
from remesh.parallel.techniques.zero import Gathering, WorkingWeights, place_weights, room_bytes

_STREAMED_FROM = 2  # the ZeRO stage from which on no rank keeps a whole gradient
_FREED_FROM = 3  # and no rank keeps all working weights

EMBEDDING, HEAD = "embedding.weight", "head.weight"

_SUMS: dict[tuple[bool, bool], Callable[..., GradientSum]] = {
    (True, False): TreeSum,
    (True, True): StreamedTreeSum,
    (False, False): PlainSum,
    (False, True): StreamedPlainSum,
}


class Assembly:
    """Model, working weights and gradient sums of one rank in one mesh."""

    def __init__(self, spec: EngineSpec, state: ShardState, mesh: Mesh) -> None:
        self.spec = spec
        self.state = state
        self.mesh = mesh
        self.workspace = Workspace(state.shards[0].values.device)
        with torch.device("meta"):  # no memory: every parameter is replaced
            self.model = Transformer(spec.model, _maths(spec, mesh), z_loss=spec.z_loss)
        self._frees = spec.zero.stage >= _FREED_FROM and not spec.zero.keep_gathered
        visits = plan_visits(self._needs())
        masters = [shard.values for shard in state.shards]
        turns = take_turns(visits) if self._frees else None
        self.weights = place_weights(masters, mesh.shard, spec.precision.compute, turns)
        slots = list(_slots(state, self.weights, tied=spec.model.tied))
        for slot in slots:
            self.model.install(slot.parameters)
        self.model.to(self.workspace.device)
        self.accumulators = Accumulators(
            slots,
            [self._sum(slot) for slot in slots],
            self.workspace,
            spec.precision.compute,
        )
        self.passes = Passes(
            self.model,
            Gathering(self.weights, visits, frees=self._frees),
            self.accumulators,
            spec.recompute.layers("full", spec.model.num_layers),
        )
        for layer in spec.recompute.layers("attention", spec.model.num_layers):
            self.model.layers[layer].attention.recompute = True

    @property
    def portion(self) -> Portion:
        """What this replica computes in each step."""
        data = self.mesh.data
        choose = streamed_portion if self.streams else contiguous_portion
        return choose(self.spec.num_leaves, data.size, data.rank)

    @property
    def streams(self) -> bool:
        return self.spec.zero.stage >= _STREAMED_FROM and self.mesh.shard.size > 1

    def expire(self) -> None:
        """The master weights have changed."""
        for weights in self.weights:
            weights.expire()

    def held_bytes(self) -> dict[str, int]:
        """Working weights apart from the master weights, gradients, and memory to be used again."""
        masters = [shard.values for shard in self.state.shards]
        return {
            "weights": room_bytes(self.weights, masters),
            "gradients": self.workspace.lent_bytes,
            "spare": self.workspace.spare_bytes,
        }

    def _sum(self, slot: Slot) -> GradientSum:
        pieces = Pieces(
            size=slot.size,
            num_shards=self.mesh.shard.size,
            num_replicas=self.mesh.replica.size,
        )
        make = _SUMS[self.spec.same_bits, self.streams]
        return make(
            pieces, self.spec.num_leaves, self.mesh, self.workspace, self.spec.precision.gradient
        )

    def _needs(self) -> list[frozenset[int]]:
        """The buckets of each phase. The embedding's backward needs no weights."""
        of_block = {n: b for b, bucket in enumerate(self.state.buckets) for n in bucket.blocks}
        blocks = [frozenset({of_block[n]}) for n in sorted(of_block)]
        if self.spec.model.tied:
            blocks[-1] |= blocks[0]
        return [*blocks, *reversed(blocks[1:]), frozenset()]


def _maths(spec: EngineSpec, mesh: Mesh) -> Maths:
    if mesh.tensor.size == 1:
        return Whole()
    return TensorParallel(mesh.tensor, sequence=spec.sequence, vocab_size=spec.model.vocab_size)


def _slots(state: ShardState, weights: tuple[WorkingWeights, ...], *, tied: bool) -> Iterator[Slot]:
    """One slot a bucket, and for a tied embedding one more with what the head adds to it."""
    head_block = state.buckets[-1].blocks[-1]
    for number, (bucket, working) in enumerate(zip(state.buckets, weights, strict=True)):
        places = bucket.plan.places
        yield Slot(
            bucket=number,
            size=bucket.plan.size,
            parameters={name: _parameter(working.full, place) for name, place in places.items()},
            places=places,
            first_block=bucket.blocks[0],
            last_block=bucket.blocks[-1],
        )
        if tied and EMBEDDING in places:
            yield Slot(
                bucket=number,
                size=bucket.plan.size,
                parameters={HEAD: _parameter(working.full, places[EMBEDDING])},
                places={HEAD: places[EMBEDDING]},
                first_block=head_block,
                last_block=head_block,
            )


def _parameter(flat: Tensor, place: Place) -> nn.Parameter:
    """By way of `data`: a fetch must not count as a change of what backward has saved."""
    return InPlaceGradient(flat[place.start : place.stop].view(place.shape).data)
