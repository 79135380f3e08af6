"""Everything that a rank computes with in one mesh, put together around the state that it owns."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.model.linear import InPlaceGradient
from remesh.parallel.model.maths import Maths, Whole
from remesh.parallel.model.model_blocks import SharedParameter, shared_parameters
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.plan.buckets import Place, Visit, plan_phases, plan_visits, take_turns
from remesh.parallel.plan.dealing import Dealing, deal_in_rounds, deal_in_runs
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import schedules_of
from remesh.parallel.plan.schedules.checks.check import check_schedules
from remesh.parallel.plan.schedules.operations import Operation
from remesh.parallel.plan.schedules.replica_slots import slots_of
from remesh.parallel.spec import EngineSpec
from remesh.parallel.step.norm import GradientNorm
from remesh.parallel.step.stage import Stage
from remesh.parallel.step.work import TokenBuffer
from remesh.parallel.sums.gradients import Accumulators, Contribution, GradientSum
from remesh.parallel.sums.lane import Lane, Sharing
from remesh.parallel.sums.plain_sum import PlainSum, StreamedPlainSum
from remesh.parallel.sums.tree import StreamedTreeSum, TreeSum
from remesh.parallel.sums.workspace import Workspace
from remesh.parallel.techniques.tensor import TensorParallel
from remesh.parallel.techniques.zero import Gathering, WorkingWeights, place_weights, room_bytes

_STREAMED_FROM = 2  # the ZeRO stage from which on no rank keeps a whole gradient
_FREED_FROM = 3  # and no rank keeps all working weights

_SUMS: dict[tuple[bool, bool], Callable[[Lane], GradientSum]] = {
    (True, False): TreeSum,
    (True, True): StreamedTreeSum,
    (False, False): PlainSum,
    (False, True): StreamedPlainSum,
}


class Assembly:
    """Model, working weights and gradient sums of one rank in one mesh.

    `lengths` are the leaves of each replica, as even as can be if there are none.
    """

    def __init__(
        self, spec: EngineSpec, state: ShardState, mesh: Mesh, lengths: Sequence[int] = ()
    ) -> None:
        self.spec = spec
        self.state = state
        self.mesh = mesh
        self.dealing = _dealing(spec, mesh, lengths)
        self.workspace = Workspace(state.shards[0].values.device)
        self._lanes = [self._lane(bucket.plan.size) for bucket in state.buckets]
        with torch.device("meta"):  # no memory: every parameter is replaced
            self.model = Transformer(
                spec.model, _maths(spec, mesh), z_loss=spec.z_loss, recompute=spec.recompute
            )
        self.blocks = self.model.blocks
        self.shared = shared_parameters(spec.model)
        self._frees = spec.zero.stage >= _FREED_FROM and not spec.zero.keep_gathered
        masters = [shard.values for shard in state.shards]
        every_block = range(len(self.blocks))
        turns = take_turns(self._visits(every_block)) if self._frees else None
        self.weights = place_weights(masters, mesh.shard, spec.precision.compute, turns)
        contributions = list(_contributions(state, self.weights, self.shared))
        for contribution in contributions:
            self.model.install(contribution.parameters)
        self.model.to(self.workspace.device)
        self.accumulators = Accumulators(
            contributions,
            [self._sum(contribution) for contribution in contributions],
            self.workspace,
            spec.precision.compute,
        )
        self.stage = self.stage_of(every_block)
        self.schedule = self._schedule()
        self.norm = GradientNorm(state, mesh, exact=spec.same_bits)
        self.partial = state.partial_spans()
        self.tokens: TokenBuffer = np.empty(
            (spec.microbatch, spec.model.seq_len + 1), dtype=np.uint16
        )

    def stage_of(self, span: range) -> Stage:
        """A run of the model's blocks, as one stage."""
        gathering = Gathering(self.weights, self._visits(span), frees=self._frees)
        return Stage(self.blocks, span, gathering, self.accumulators)

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

    def _schedule(self) -> tuple[Operation, ...]:
        """That of this rank, once those of its pipeline are known to be one step."""
        rank, size = self.mesh.data.rank, self.spec.microbatches_per_leaf
        pipeline, slots = Pipeline(), slots_of(self.dealing, rank, size)
        schedules = schedules_of("1f1b", pipeline, slots)
        check_schedules(schedules, pipeline, slots)
        return schedules[0]

    def _sum(self, contribution: Contribution) -> GradientSum:
        lane = self._lanes[contribution.bucket]
        return _SUMS[self.spec.same_bits, lane.dealing.in_rounds](lane)

    def _lane(self, size: int) -> Lane:
        """All ranks with the same share of the model add up all of it."""
        mesh = self.mesh
        sharing = Sharing(data=mesh.data, shard=mesh.shard, replica=mesh.replica)
        return Lane(
            pieces=Pieces(size=size, num_shards=mesh.shard.size, num_replicas=mesh.replica.size),
            sharing=sharing,
            dealing=self.dealing,
            workspace=self.workspace,
            dtype=self.spec.precision.gradient,
        )

    def _visits(self, span: range) -> tuple[Visit, ...]:
        """When a stage of these blocks needs which buckets."""
        of_block = {n: b for b, bucket in enumerate(self.state.buckets) for n in bucket.blocks}
        needs = {number: {of_block[number]} for number in of_block}
        for shared in self.shared:
            needs[shared.user].add(of_block[shared.owner])
        phases = plan_phases(
            [frozenset(needs[number]) for number in span],
            [self.blocks[number].reads_weights for number in span],
        )
        return plan_visits(phases)


def _dealing(spec: EngineSpec, mesh: Mesh, lengths: Sequence[int]) -> Dealing:
    streams = spec.zero.stage >= _STREAMED_FROM and mesh.shard.size > 1
    deal = deal_in_rounds if streams else deal_in_runs
    return deal(spec.num_leaves, mesh.data.size, lengths)


def _maths(spec: EngineSpec, mesh: Mesh) -> Maths:
    if mesh.tensor.size == 1:
        return Whole()
    return TensorParallel(mesh.tensor, sequence=spec.sequence, vocab_size=spec.model.vocab_size)


def _contributions(
    state: ShardState, weights: tuple[WorkingWeights, ...], shared: Sequence[SharedParameter]
) -> Iterator[Contribution]:
    """What its own blocks add to each bucket, and what those add that share a parameter of it."""
    for number, (bucket, working) in enumerate(zip(state.buckets, weights, strict=True)):
        places = bucket.plan.places
        yield Contribution(
            bucket=number,
            size=bucket.plan.size,
            parameters={name: _parameter(working.full, place) for name, place in places.items()},
            places=places,
            first_block=bucket.blocks[0],
            last_block=bucket.blocks[-1],
        )
        for one in shared:
            if one.source in places:
                place = places[one.source]
                yield Contribution(
                    bucket=number,
                    size=bucket.plan.size,
                    parameters={one.name: _parameter(working.full, place)},
                    places={one.name: place},
                    first_block=one.user,
                    last_block=one.user,
                )


def _parameter(flat: Tensor, place: Place) -> nn.Parameter:
    """By way of `data`: a fetch must not count as a change of what backward has saved."""
    return InPlaceGradient(flat[place.start : place.stop].view(place.shape).data)
