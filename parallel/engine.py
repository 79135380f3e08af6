"""Carries out a step: an interpreter of schedules, and the state that steps change.

The state (parameters, both moments, a count of updates) is touched by one operation only, Step,
which contains no wait: a rank that is fenced anywhere else holds its state at the step before,
whole. A step whose loss or gradient is not finite on any rank is counted and skipped by all.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from remesh.parallel.errors import Cancelled, CheckpointError, GroupError
from remesh.parallel.fence import Fence
from remesh.parallel.group import Group
from remesh.parallel.model.config import ModelConfig, parameter_shapes
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.numerics.losses import summed_cross_entropy
from remesh.parallel.optim.adamw import AdamW, AdamWConfig
from remesh.parallel.optim.clip import clip_factor, exact_norm
from remesh.parallel.optim.flat import FlatParameters, plan_flat
from remesh.parallel.optim.lr import LrCurve, lr_at
from remesh.parallel.schedules import (
    Backward,
    Forward,
    Operation,
    Reduce,
    Step,
    Vote,
    check_schedule,
    data_parallel_schedule,
)
from remesh.parallel.tree import GradientTree
from remesh.parallel.vote import LOSS_UNITS, Ballot, Outcome, vote

Tokens = np.ndarray[tuple[int, int], np.dtype[np.uint16]]


class Phase(IntEnum):
    """Where a rank stands: between steps, inside the update, or anywhere else in a step."""

    AT = 0
    COMPUTING = 1
    UPDATING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """All that a step's bits depend on, besides the data. `microbatch` is in sequences."""

    model: ModelConfig
    seed: int
    num_leaves: int
    microbatches_per_leaf: int
    microbatch: int
    lr: LrCurve
    adamw: AdamWConfig
    clip: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a rank needs for one step.

    `fill(first, out)` puts the samples from `first` on, counted in the global batch, into `out`
    and returns their digest: (high, low, count). `stamp(step, operation, phase)` is told where the
    rank stands. `leaves` are the ones that `deal` gives this rank.
    """

    group: Group
    fence: Fence
    generation: int
    leaves: range
    fill: Callable[[int, Tokens], tuple[int, int, int]]
    stamp: Callable[[int, int, int], None]
    drain: bool = False
    save: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step did, the same on every rank. `applied` is False for a skipped update."""

    loss: float
    grad_norm: float
    lr: float
    tokens: int
    samples: int
    digest: str
    applied: bool
    drain: bool
    save: bool


@dataclass(slots=True, kw_only=True)
class _Progress:
    """A step on its way."""

    step: int
    work: Work
    ballot: Ballot
    losses: dict[int, Tensor] = field(default_factory=dict)
    leaf_gradient: Tensor | None = None
    gradient: Tensor | None = None
    outcome: Outcome | None = None
    result: StepResult | None = None


class Engine:
    """One rank's model and optimizer. `at_step` is None while it holds no whole state."""

    def __init__(self, spec: EngineSpec) -> None:
        plan = plan_flat(parameter_shapes(spec.model))
        self.spec = spec
        self.at_step: int | None = None
        self.model = Transformer(spec.model)
        self.parameters = FlatParameters(self.model, plan)
        self.parameters.adopt()
        self.optimizer = AdamW(spec.adamw, plan.size, plan.num_decayed)
        self._tree = GradientTree(spec.num_leaves, plan.size)
        self._schedules: dict[range, tuple[Operation, ...]] = {}
        self._tokens: Tokens = np.empty((spec.microbatch, spec.model.seq_len + 1), dtype=np.uint16)

    def warm_up(self) -> None:
        """Runs one microbatch for nothing: a process's first backward takes ten times as long."""
        assert self.at_step is None
        self.model.reset(self.spec.seed)
        gradient = self._tree.take()
        self.parameters.point_gradients(gradient)
        tokens = torch.zeros(self._tokens.shape, dtype=torch.int64)
        losses = summed_cross_entropy(self.model(tokens[:, :-1]), tokens[:, 1:])
        losses.objective.backward()  # type: ignore[no-untyped-call]
        self._tree.add(0, gradient)
        self._tree.clear()

    def reset(self) -> None:
        """The state at step 0, drawn from the seed."""
        self.at_step = None
        self.model.reset(self.spec.seed)
        self.optimizer.reset()
        self.at_step = 0

    def step(self, step: int, work: Work) -> StepResult:
        """Turns the state at `step` - 1 into the state at `step`, together with the group.

        Raises: Cancelled or GroupError, with the state as it was; what `fill` raises.
        """
        assert self.at_step == step - 1, (self.at_step, step)
        ballot = Ballot(drain=int(work.drain), save=int(work.save))
        progress = _Progress(step=step, work=work, ballot=ballot)
        self._tree.clear()
        try:
            self._run(self._schedule(work.leaves), progress)
        except (Cancelled, GroupError):
            self._tree.abandon()
            raise
        assert progress.result
        return progress.result

    def state(self) -> dict[str, Tensor]:
        """Every tensor of the state by name, as views: copy them before the next step."""
        views = self.parameters.plan.views
        exp_avg, exp_avg_sq = views(self.optimizer.exp_avg), views(self.optimizer.exp_avg_sq)
        return {
            **views(self.parameters.values),
            **{f"exp_avg.{name}": view for name, view in exp_avg.items()},
            **{f"exp_avg_sq.{name}": view for name, view in exp_avg_sq.items()},
            "num_updates": self.optimizer.num_updates,
        }

    def flat_state(self) -> list[Tensor]:
        """The same state in as few tensors as possible."""
        optimizer = self.optimizer
        return [
            self.parameters.values,
            optimizer.exp_avg,
            optimizer.exp_avg_sq,
            optimizer.num_updates,
        ]

    def load(self, tensors: Mapping[str, Tensor], at_step: int) -> None:
        """Takes a state over by name.

        Raises: CheckpointError if names, shapes or types are not the model's own.
        """
        own = self.state()
        if odd := sorted(own.keys() ^ tensors.keys()):
            side = "lacks" if odd[0] in own else "has the unknown"
            raise CheckpointError(f"the checkpoint {side} tensor {odd[0]}; is it of another model?")
        for name, tensor in own.items():
            _check_alike(name, tensors[name], tensor)
        self.at_step = None
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self.at_step = at_step

    def _schedule(self, leaves: range) -> tuple[Operation, ...]:
        """The operations of these leaves, checked once."""
        if leaves not in self._schedules:
            schedule = data_parallel_schedule(leaves, self.spec.microbatches_per_leaf)
            check_schedule(schedule, leaves, self.spec.microbatches_per_leaf)
            self._schedules[leaves] = schedule
        return self._schedules[leaves]

    def _run(self, schedule: tuple[Operation, ...], progress: _Progress) -> None:
        step, work = progress.step, progress.work
        for number, operation in enumerate(schedule):
            work.fence.check(work.generation)
            updates = isinstance(operation, Step)
            work.stamp(step, number, Phase.UPDATING if updates else Phase.COMPUTING)
            self._carry_out(operation, progress)
        work.stamp(step, len(schedule), Phase.AT)

    def _carry_out(self, operation: Operation, progress: _Progress) -> None:
        match operation:
            case Forward(microbatch=microbatch):
                self._forward(microbatch, progress)
            case Backward(microbatch=microbatch):
                self._backward(microbatch, progress)
            case Reduce(leaf=leaf):
                self._reduce(leaf, progress)
            case Vote():
                progress.outcome = vote(progress.work.group, progress.ballot)
            case Step():
                progress.result = self._update(progress)
            case _:
                assert_never(operation)

    def _forward(self, microbatch: int, progress: _Progress) -> None:
        ballot = progress.ballot
        first = microbatch * self.spec.microbatch
        high, low, count = progress.work.fill(first, self._tokens)
        tokens = torch.from_numpy(self._tokens.astype(np.int64))
        logits = self.model(tokens[:, :-1])
        losses = summed_cross_entropy(logits, tokens[:, 1:])
        value = losses.cross_entropy.item()
        ballot.loss_units += round(value * LOSS_UNITS) if math.isfinite(value) else 0
        ballot.nonfinite += not math.isfinite(value)
        ballot.tokens += losses.num_tokens
        ballot.samples += count
        ballot.digest_high += high
        ballot.digest_low += low
        progress.losses[microbatch] = losses.objective

    def _backward(self, microbatch: int, progress: _Progress) -> None:
        if progress.leaf_gradient is None:
            progress.leaf_gradient = self._tree.take()
            self.parameters.point_gradients(progress.leaf_gradient)
        progress.losses.pop(microbatch).backward()  # type: ignore[no-untyped-call]

    def _reduce(self, leaf: int | None, progress: _Progress) -> None:
        if leaf is None:
            progress.gradient = self._tree.reduce(progress.work.group)
            return
        assert progress.leaf_gradient is not None
        self._tree.add(leaf, progress.leaf_gradient)
        progress.leaf_gradient = None

    def _update(self, progress: _Progress) -> StepResult:
        gradient, outcome = progress.gradient, progress.outcome
        assert gradient is not None
        assert outcome
        lr = lr_at(self.spec.lr, progress.step)
        norm = exact_norm(gradient) / outcome.tokens if outcome.tokens else 0.0
        applied = outcome.finite and math.isfinite(norm) and outcome.tokens > 0
        if applied:
            gradient.mul_(clip_factor(norm, self.spec.clip) / outcome.tokens)
            self.optimizer.update(self.parameters.values, gradient, lr)
        self.at_step = progress.step
        return StepResult(
            loss=outcome.loss,
            grad_norm=norm,
            lr=lr,
            tokens=outcome.tokens,
            samples=outcome.samples,
            digest=outcome.digest,
            applied=applied,
            drain=outcome.drain,
            save=outcome.save,
        )


def _check_alike(name: str, tensor: Tensor, own: Tensor) -> None:
    if tensor.shape != own.shape or tensor.dtype != own.dtype:
        raise CheckpointError(
            f"the checkpoint's {name} is {tensor.dtype} {tuple(tensor.shape)}, the model's "
            f"{own.dtype} {tuple(own.shape)}; is it of another model?"
        )
