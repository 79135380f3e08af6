"""Everything that a rank computes with in one mesh, put together around the state that it owns."""

from collections.abc import Callable

import numpy as np
import torch

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.model.maths import Maths, Whole
from remesh.parallel.model.model_blocks import shared_parameters
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.pages.own_pages import OwnPages
from remesh.parallel.plan.buckets import Bucket, plan_visits, take_turns
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.spec import EngineSpec
from remesh.parallel.step.balance import expert_loads
from remesh.parallel.step.borders import BorderShape
from remesh.parallel.step.contributions import contributions, joint_maps, needs
from remesh.parallel.step.needed_weights import plan_phases
from remesh.parallel.step.norm import GradientNorm
from remesh.parallel.step.rank_schedule import StepOrder, dealt, has_halves, rank_schedule
from remesh.parallel.step.stage import Stage
from remesh.parallel.step.work import TokenBuffer
from remesh.parallel.sums.gradients import Accumulators, Contribution, GradientSum
from remesh.parallel.sums.lane import Lane, Sharing
from remesh.parallel.sums.meeting import SumMeeting
from remesh.parallel.sums.plain_sum import PlainSum, StreamedPlainSum
from remesh.parallel.sums.tree import StreamedTreeSum, TreeSum
from remesh.parallel.sums.workspace import Workspace
from remesh.parallel.techniques.context import ContextParallel
from remesh.parallel.techniques.expert import ExpertParallel
from remesh.parallel.techniques.halved import Halved
from remesh.parallel.techniques.taking_turns import TakingTurns
from remesh.parallel.techniques.tensor import TensorParallel
from remesh.parallel.techniques.zero import Gathering, WorkingWeights, place_weights, room_bytes

_FREED_FROM = 3  # the ZeRO stage from which on no rank keeps all working weights

_SUMS: dict[tuple[bool, bool], Callable[[Lane], GradientSum]] = {
    (True, False): TreeSum,
    (True, True): StreamedTreeSum,
    (False, False): PlainSum,
    (False, True): StreamedPlainSum,
}


class Assembly:
    """Model, working weights and gradient sums of one rank in one mesh."""

    def __init__(self, spec: EngineSpec, state: ShardState, mesh: Mesh, order: StepOrder) -> None:
        self.spec = spec
        self.state = state
        self.mesh = mesh
        pipeline = state.held.cut.pipeline
        self.last_stage = pipeline.num_stages - 1
        self.dealing = dealt(spec, mesh, order.lengths)
        own = rank_schedule(spec, mesh, pipeline, self.dealing, order.schedule)
        self.schedule, self.standings = own.operations, own.standings
        self.workspace = Workspace(state.shards[0].values.device)
        own_pages = OwnPages()
        self._shown = Workspace(self.workspace.device, own_pages)
        self.parted = state.parted_buckets()
        self.partial = state.partial_spans()
        changes = bool(self.parted or self.partial or shared_parameters(spec.model))
        self._meetings = (
            (None, None) if self.dealing.in_rounds else _meetings(mesh, own_pages, changes=changes)
        )
        self._lanes = [self._lane(bucket) for bucket in state.buckets]
        self.turns = TakingTurns()
        maths = _maths(spec, mesh, self.turns)
        halved = Halved(maths) if has_halves(self.schedule) else None
        self.model = _model(spec, halved or maths)
        self.weights, self.gathering = self._working_weights()
        pairs = zip(state.buckets, self.weights, strict=True)
        joint = [list(joint_maps(self.model.together, *pair)) for pair in pairs]
        parts = list(contributions(state, self.weights, joint))
        for part in parts:
            self.model.install(part.parameters)
        for one in (one for maps in joint for one in maps):
            self.model.join(one.maps, one.linear)
        self.model.move_tables(self.workspace.device)
        self.loads = expert_loads(spec, self.workspace.device)
        if self.loads is not None:
            self.model.count_loads(self.loads)
        self.accumulators = Accumulators(
            parts,
            [self._sum(part) for part in parts],
            self.workspace,
            None if spec.precision.gradient == spec.precision.compute else spec.precision.compute,
            in_rounds=self.dealing.in_rounds,
        )
        self.stages = {
            stage: Stage(self.model.blocks, span, self.gathering, self.accumulators, halved)
            for stage, span in state.spans.items()
        }
        self.border_shape = self._border_shape()
        self.norm = GradientNorm(state, mesh, exact=spec.same_bits)
        self.tokens: TokenBuffer = np.empty(
            (spec.microbatch, spec.model.seq_len + 1), dtype=np.uint16
        )

    def expire(self) -> None:
        """The master weights have changed."""
        for weights in self.weights:
            weights.expire()

    def held_bytes(self) -> dict[str, int]:
        """Working weights apart from the master weights, gradients, and memory to be used again."""
        masters = [shard.values for shard in self.state.shards]
        return {
            "weights": room_bytes(self.weights, masters),
            "gradients": self.workspace.lent_bytes + self._shown.lent_bytes,
            "spare": self.workspace.spare_bytes + self._shown.spare_bytes,
        }

    def _working_weights(self) -> tuple[tuple[WorkingWeights, ...], Gathering]:
        """And what brings them, in the order in which the schedule needs them."""
        spec, state = self.spec, self.state
        reads = {number for number, block in enumerate(self.model.blocks) if block.reads_weights}
        phases = plan_phases(self.schedule, state.spans, needs(state), reads)
        visits = plan_visits(phases)
        frees = spec.zero.stage >= _FREED_FROM and not spec.zero.keep_gathered
        turns = take_turns(visits) if frees else None
        masters = [shard.values for shard in state.shards]
        groups = [lane.sharing.shard for lane in self._lanes]
        weights = place_weights(masters, groups, spec.precision.compute, turns)
        return weights, Gathering(weights, visits, self.mesh.world, frees=frees)

    def _border_shape(self) -> BorderShape:
        """A rank has its own tokens only, of which those of a tensor group may share some out."""
        spec = self.spec
        ranks = self.mesh.ring.size * (self.mesh.tensor.size if spec.sequence else 1)
        return BorderShape(
            shape=(spec.microbatch, spec.model.seq_len // ranks, spec.model.width),
            dtype=spec.precision.compute,
            device=self.workspace.device,
        )

    def _sum(self, contribution: Contribution) -> GradientSum:
        lane = self._lanes[contribution.bucket]
        return _SUMS[self.spec.same_bits, lane.dealing.in_rounds](lane)

    def _lane(self, bucket: Bucket) -> Lane:
        """All ranks with the same share of the model add up all of it; of experts they are fewer,
        of which each has a gradient of the tokens of several.
        """
        mesh, dealing = self.mesh, self.dealing
        sharing = Sharing(data=mesh.data, shard=mesh.shard, replica=mesh.replica)
        if bucket.of_experts:
            dealing = dealing.by_runs(mesh.experts.size)
            sharing = Sharing(
                data=mesh.expert_data, shard=mesh.expert_shard, replica=mesh.expert_replica
            )
        meeting = self._meetings[bucket.of_experts]
        return Lane(
            pieces=Pieces(
                size=bucket.plan.size,
                num_shards=sharing.shard.size,
                num_replicas=sharing.replica.size,
            ),
            sharing=sharing,
            dealing=dealing,
            workspace=self.workspace if meeting is None else self._shown,
            dtype=self.spec.precision.gradient,
            meeting=meeting,
        )


def _meetings(
    mesh: Mesh, own: OwnPages, *, changes: bool
) -> tuple[SumMeeting | None, SumMeeting | None]:
    """Of the ranks with the same parameters, and of those with the same experts.

    Ranks that exchange every leaf have none: they keep nothing that others could read.
    """
    if mesh.pages is None or mesh.expert_pages is None:
        return None, None
    dense = SumMeeting(mesh.data, mesh.replica, mesh.pages, own, changes=changes)
    experts = mesh.expert_data, mesh.expert_replica, mesh.expert_pages
    return dense, SumMeeting(*experts, own, changes=changes)


def _maths(spec: EngineSpec, mesh: Mesh, turns: TakingTurns) -> Maths:
    """Ranks of a ring have some of the tokens each, and those of a tensor group share these; those
    of an expert group have some of the experts each.
    """
    maths: Maths = Whole()
    if mesh.tensor.size > 1:
        vocab_size = spec.model.vocab_size
        maths = TensorParallel(mesh.tensor, sequence=spec.sequence, vocab_size=vocab_size)
    if mesh.ring.size > 1:
        maths = ContextParallel(maths, mesh.ring)
    return maths if mesh.experts.size == 1 else ExpertParallel(maths, mesh.experts, turns)


def _model(spec: EngineSpec, maths: Maths) -> Transformer:
    """Without any memory: every parameter that is computed with is replaced."""
    with torch.device("meta"):
        return Transformer(
            spec.model,
            maths,
            z_loss=spec.z_loss,
            recompute=spec.recompute,
            router=spec.router,
        )
