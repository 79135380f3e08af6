"""One step on its way: what each operation of a schedule does, and what the step is so far.

The state (master weights, the optimizer's slots, a count of updates) is touched by one operation
only, Step, which contains no wait: a rank that is fenced anywhere else holds its state at the step
before, whole. Working weights are derived from it, and nobody has to restore them. A step whose
loss or gradient is not finite on any rank is counted and skipped by all.
"""

import math
from dataclasses import replace
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from remesh.parallel.optim.clip import clip_factor
from remesh.parallel.optim.lr import lr_at
from remesh.parallel.optim.optimizer import Rates
from remesh.parallel.plan.schedules.operations import (
    Backward,
    Exchange,
    Forward,
    InputBackward,
    KeepCompany,
    Operation,
    Receive,
    Reduce,
    Send,
    Stash,
    Step,
    Vote,
    WeightBackward,
)
from remesh.parallel.plan.step_result import StepResult
from remesh.parallel.step.assembly import Assembly
from remesh.parallel.step.stage import Passage
from remesh.parallel.step.vote import Ballot, vote
from remesh.parallel.step.work import Work
from remesh.parallel.sums.partial import sum_partial_


class Interpreter:
    """Carries out the operations of one step. There is a `result` after the last one."""

    def __init__(self, step: int, work: Work, assembly: Assembly) -> None:
        self.result: StepResult | None = None
        self._step = step
        self._work = work
        self._assembly = assembly
        self._ballot = Ballot(
            drain=int(work.drain), save=int(work.save), unready=int(not work.ready)
        )
        self._total = Ballot()
        self._passages: dict[int, Passage] = {}
        self._gradients: list[Tensor] = []
        self._norm = 0.0
        self._stable_step: int | None = None

    def carry_out(self, operation: Operation) -> None:
        """Raises: Cancelled, GroupError; what `fill` raises."""
        stage = self._assembly.stage
        match operation:
            case Forward(microbatch=microbatch):
                self._forward(microbatch)
            case Backward(microbatch=microbatch, leaf=leaf, ends_leaf=ends_leaf):
                stage.backward(self._passages.pop(microbatch), None, leaf, ends_leaf=ends_leaf)
            case KeepCompany(what=what, ends_leaf=ends_leaf):
                stage.keep_company(what, ends_leaf=ends_leaf)
            case Reduce():
                self._gradients = self._assembly.accumulators.finish()
                sum_partial_(self._work.mesh.tensor, self._gradients, self._assembly.partial)
            case Vote():
                self._vote()
            case Step():
                self._update()
            case InputBackward() | WeightBackward() | Stash() | Send() | Receive() | Exchange():
                raise AssertionError(operation)
            case _:
                assert_never(operation)

    def _forward(self, microbatch: int) -> None:
        buffer, device = self._assembly.tokens, self._assembly.workspace.device
        samples = self._work.fill(microbatch * self._assembly.spec.microbatch, buffer)
        tokens = torch.from_numpy(buffer.astype(np.int64)).to(device)
        passage = self._assembly.stage.forward(tokens[:, :-1], tokens[:, 1:])
        assert passage.losses
        self._passages[microbatch] = passage
        is_counted = self._work.mesh.tensor.rank == 0
        self._ballot.count(passage.losses, samples if is_counted else None)

    def _vote(self) -> None:
        norm = self._assembly.norm
        own, self._stable_step = norm.measure(self._gradients, self._work.sealed_step)
        self._ballot.norm_units = own.units if norm.counts else 0
        self._total = vote(self._work.mesh.world, self._ballot)
        whole = replace(own, units=self._total.norm_units) if norm.is_spread else own
        self._norm = whole.root

    def _update(self) -> None:
        total, spec = self._total, self._assembly.spec
        lr = lr_at(spec.lr, self._step)
        norm = self._norm / total.tokens if total.tokens else math.nan
        applied = total.is_finite and math.isfinite(norm) and total.tokens > 0
        if applied:
            factor = clip_factor(norm, spec.clip) / total.tokens
            self._apply(Rates(lr=lr, factor=factor))
        self._assembly.accumulators.clear()
        self.result = StepResult(
            loss=total.loss,
            grad_norm=norm,
            lr=lr,
            tokens=total.tokens,
            samples=total.samples,
            digest=self._work.write_digest(total.sample_sums),
            applied=applied,
            drain=total.drain > 0,
            save=total.save > 0,
            stable_step=self._stable_step,
            snapshot=not total.unready and self._stable_step is not None,
        )

    def _apply(self, rates: Rates) -> None:
        state, optimizer = self._assembly.state, self._assembly.spec.optimizer
        state.num_updates += 1
        optimizer.update(state.shards, self._gradients, int(state.num_updates), rates)
        self._assembly.expire()
