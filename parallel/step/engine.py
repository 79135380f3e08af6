"""Carries out a step: an interpreter of schedules, and the state that steps change.

The state (master weights, the optimizer's slots, a count of updates) is touched by one operation
only, Step, which contains no wait: a rank that is fenced anywhere else holds its state at the step
before, whole. Working weights are derived from it, and nobody has to restore them. A step whose
loss or gradient is not finite on any rank is counted and skipped by all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.exchange import ROUND_BYTES
from remesh.parallel.holding.restore import share_state
from remesh.parallel.holding.shard_state import Holding, ShardState
from remesh.parallel.holding.slot_source import SlotSource
from remesh.parallel.optim.clip import clip_factor
from remesh.parallel.optim.lr import lr_at
from remesh.parallel.optim.optimizer import Rates
from remesh.parallel.plan.schedules.check import WholeStep, check_schedules
from remesh.parallel.plan.schedules.data_parallel import data_parallel_schedules
from remesh.parallel.plan.schedules.operations import (
    Backward,
    Forward,
    KeepCompany,
    LocalOperation,
    Reduce,
    Step,
    Vote,
)
from remesh.parallel.plan.step_result import StepResult
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.step.assembly import Assembly
from remesh.parallel.step.norm import GradientNorm
from remesh.parallel.step.stage import Passage
from remesh.parallel.step.vote import Ballot, vote
from remesh.parallel.step.work import RankPhase, TokenBuffer, Work
from remesh.parallel.sums.partial import sum_partial_


@dataclass(slots=True, kw_only=True)
class _Progress:
    """A step on its way."""

    step: int
    work: Work
    ballot: Ballot
    passages: dict[int, Passage] = field(default_factory=dict)
    gradients: list[Tensor] = field(default_factory=list)
    norm: float = 0.0
    total: Ballot | None = None
    stable_step: int | None = None
    result: StepResult | None = None


class Engine:
    """One rank's share of model and optimizer. `at_step` is None while it holds no whole state.

    `form` comes first, and again in every new mesh.
    """

    def __init__(self, spec: EngineSpec, device: torch.device | None = None) -> None:
        self.spec = spec
        self.at_step: int | None = None
        self._device = device or torch.device("cpu")
        self._state: ShardState | None = None
        self._assembly: Assembly | None = None
        self._schedule: tuple[LocalOperation, ...] = ()
        self._lengths: Sequence[int] = ()
        self._tokens: TokenBuffer = np.empty(
            (spec.microbatch, spec.model.seq_len + 1), dtype=np.uint16
        )

    def form(self, mesh: Mesh, lengths: Sequence[int] = ()) -> None:
        """Prepares for steps in this mesh. State that this rank holds in the mesh is kept.

        `lengths` are the leaves that each replica computes, as even as can be if there are none.
        Raises: LayoutError if the model cannot be cut, or its leaves not be dealt so.
        """
        self._lengths = lengths
        cut = self.spec.cut(mesh.layout, mesh.shard.size)
        held = cut.held_by(mesh.layout, mesh.world.rank)
        if self._state is None or self._state.held != held:
            self.at_step = None
            self._state = ShardState(self.spec, held, self._device)
        self._assemble(mesh)

    def reset(self) -> None:
        """The state at step 0, drawn from the seed."""
        self.at_step = None
        self.shard_state.draw(self.spec.model, self.spec.seed)
        self.assembly.expire()
        self.at_step = 0

    def step(self, step: int, work: Work) -> StepResult:
        """Turns the state at `step` - 1 into the state at `step`, together with the mesh.

        Raises: Cancelled or GroupError, with the state as it was; what `fill` raises.
        """
        assert self.at_step == step - 1, (self.at_step, step)
        if self._assembly is None or self._assembly.mesh is not work.mesh:
            self._assemble(work.mesh)
        ballot = Ballot(drain=int(work.drain), save=int(work.save), unready=int(not work.ready))
        progress = _Progress(step=step, work=work, ballot=ballot)
        try:
            self._run(progress)
        except BaseException:
            # An operation that was left behind may still write to what it was given.
            self._assembly = None
            raise
        assert progress.result
        return progress.result

    @property
    def shard_state(self) -> ShardState:
        assert self._state, "form comes first"
        return self._state

    @property
    def assembly(self) -> Assembly:
        assert self._assembly, "form comes first"
        return self._assembly

    def fragments(self) -> list[tuple[Fragment, Tensor]]:
        """All that this rank owns of the state, as views: copy them before the next step."""
        return self.shard_state.fragments()

    def load(self, found: Mapping[Fragment, Tensor], at_step: int) -> None:
        """Takes over a state of exactly the fragments that this rank owns."""
        self.at_step = None
        for fragment, view in self.fragments():
            view.copy_(found[fragment])
        self.loaded(at_step)

    def holding(self) -> Holding | None:
        """The state as it is held now, to be kept while another mesh is formed."""
        if self._state is None or self.at_step is None:
            return None
        return Holding(state=self._state, at_step=self.at_step)

    def put_back(self, holding: Holding | None) -> None:
        """Holds this state again, whatever has been formed since; None for no state."""
        self._assembly = None
        self.at_step = None
        if holding is not None:
            self._state, self.at_step = holding.state, holding.at_step

    def share(
        self,
        holding: Holding | None,
        at_step: int,
        slots: Sequence[SlotSource] = (),
        *,
        round_bytes: int = ROUND_BYTES,
    ) -> None:
        """Brings every rank to `at_step` with what the holdings of all of them and `slots` make up.

        All ranks call it, after `form`, with what they held before and the same slots. If it fails,
        each is left with what it held of that step.

        Raises: Cancelled, GroupError; SlotError; ReshardError if all of it is not the whole state.
        """
        mesh, target = self.assembly.mesh, self.shard_state
        try:
            share_state(target, mesh, holding, at_step, slots, round_bytes=round_bytes)
        except BaseException:
            self.put_back(holding if holding and holding.at_step == at_step else None)
            raise
        self.loaded(at_step)

    def loaded(self, at_step: int) -> None:
        """Says that the fragments hold the state at this step now."""
        if self._assembly:
            self._assembly.expire()
        self.at_step = at_step

    def held_bytes(self) -> dict[str, int]:
        """Memory by use, in bytes: master weights, slots, working weights, gradients, spare.

        Between steps there are no gradients, but spare memory for those of the next one.
        """
        return {**self.shard_state.held_bytes(), **self.assembly.held_bytes()}

    def _assemble(self, mesh: Mesh) -> None:
        assembly = Assembly(self.spec, self.shard_state, mesh, self._lengths)
        dealing, size = assembly.dealing, self.spec.microbatches_per_leaf
        schedules = data_parallel_schedules(dealing, size)
        whole = WholeStep(
            num_leaves=dealing.num_leaves, microbatches_per_leaf=size, in_rounds=dealing.in_rounds
        )
        check_schedules(schedules, whole)
        self._schedule = schedules[mesh.data.rank]
        self._assembly = assembly
        self._norm = GradientNorm(self.shard_state, mesh, exact=self.spec.same_bits)
        self._partial = self.shard_state.partial_spans()

    def _run(self, progress: _Progress) -> None:
        step, work = progress.step, progress.work
        for number, operation in enumerate(self._schedule):
            work.fence.check(work.generation)
            updates = isinstance(operation, Step)
            work.stamp(step, number, RankPhase.UPDATING if updates else RankPhase.COMPUTING)
            self._carry_out(operation, progress)
        work.stamp(step, len(self._schedule), RankPhase.AT)

    def _carry_out(self, operation: LocalOperation, progress: _Progress) -> None:
        stage = self.assembly.stage
        match operation:
            case Forward(microbatch=microbatch):
                self._forward(microbatch, progress)
            case Backward(microbatch=microbatch, leaf=leaf, ends_leaf=ends_leaf):
                passage = progress.passages.pop(microbatch)
                stage.backward(passage, None, leaf, ends_leaf=ends_leaf)
            case KeepCompany():
                stage.keep_company(self.spec.microbatches_per_leaf)
            case Reduce():
                progress.gradients = self.assembly.accumulators.finish()
                sum_partial_(progress.work.mesh.tensor, progress.gradients, self._partial)
            case Vote():
                self._vote(progress)
            case Step():
                progress.result = self._update(progress)
            case _:
                assert_never(operation)

    def _forward(self, microbatch: int, progress: _Progress) -> None:
        first = microbatch * self.spec.microbatch
        samples = progress.work.fill(first, self._tokens)
        tokens = torch.from_numpy(self._tokens.astype(np.int64)).to(self._device)
        passage = self.assembly.stage.forward(tokens[:, :-1], tokens[:, 1:])
        assert passage.losses
        progress.passages[microbatch] = passage
        is_counted = progress.work.mesh.tensor.rank == 0
        progress.ballot.count(passage.losses, samples if is_counted else None)

    def _vote(self, progress: _Progress) -> None:
        own, progress.stable_step = self._norm.measure(
            progress.gradients, progress.work.sealed_step
        )
        progress.ballot.norm_units = own.units if self._norm.counts else 0
        progress.total = vote(progress.work.mesh.world, progress.ballot)
        whole = replace(own, units=progress.total.norm_units) if self._norm.is_spread else own
        progress.norm = whole.root

    def _update(self, progress: _Progress) -> StepResult:
        total = progress.total
        assert total
        lr = lr_at(self.spec.lr, progress.step)
        norm = progress.norm / total.tokens if total.tokens else 0.0
        applied = total.is_finite and math.isfinite(norm) and total.tokens > 0
        if applied:
            self._apply(progress.gradients, lr, clip_factor(norm, self.spec.clip) / total.tokens)
        self.assembly.accumulators.clear()
        self.at_step = progress.step
        return StepResult(
            loss=total.loss,
            grad_norm=norm,
            lr=lr,
            tokens=total.tokens,
            samples=total.samples,
            digest=progress.work.write_digest(total.sample_sums),
            applied=applied,
            drain=total.drain > 0,
            save=total.save > 0,
            stable_step=progress.stable_step,
            snapshot=not total.unready and progress.stable_step is not None,
        )

    def _apply(self, gradients: list[Tensor], lr: float, factor: float) -> None:
        state = self.shard_state
        state.num_updates += 1
        rates = Rates(lr=lr, factor=factor)
        self.spec.optimizer.update(state.shards, gradients, int(state.num_updates), rates)
        self.assembly.expire()
