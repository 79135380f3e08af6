"""One step on its way: what each operation of a schedule does, and what the step is so far.

The state (master weights, the optimizer's slots, a count of updates) is touched by one operation
only, Step, which contains no wait: a rank that is fenced anywhere else holds its state at the step
before, whole. Working weights are derived from it, and nobody has to restore them. A step whose
loss or gradient is not finite on any rank is counted and skipped by all.

Tokens are read where the first stage is, and for their targets where the last one is; there alone
are loss, tokens and samples counted.
"""

import math
from typing import assert_never

from torch import Tensor

from remesh.parallel.groups.collectives import all_reduce_
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
    Overlap,
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
from remesh.parallel.step.balance import rebalance_
from remesh.parallel.step.borders import Borders
from remesh.parallel.step.passes import Passes
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
        self._borders = Borders(assembly.schedule, work.mesh.pipes, assembly.border_shape)
        self._ballot = Ballot(drain=int(work.drain), save=int(work.save))
        self._total = Ballot()
        self._passes = Passes(work, assembly, self._borders, self._ballot)
        self._gradients: list[Tensor] = []
        self._norm = 0.0
        assembly.turns.trace = work.trace
        if assembly.loads is not None:
            assembly.loads.zero_()

    def carry_out(self, operation: Operation) -> None:
        """Raises: Cancelled, GroupError; what `fill` raises."""
        self._assembly.turns.operation = operation
        match operation:
            case Forward() | Backward() | InputBackward() | WeightBackward():
                self._passes.carry_out(operation)
            case KeepCompany() | Overlap():
                self._passes.carry_out(operation)
            case Send() | Receive() | Exchange():
                self._borders.carry_out(operation)
            case Reduce():
                self._reduce()
            case Vote():
                self._vote()
            case Step():
                self._update()
            case Stash():
                raise AssertionError(operation)  # of plans only: weights have one version here
            case _:
                assert_never(operation)

    def _reduce(self) -> None:
        self._borders.finish()
        self._gradients = self._assembly.accumulators.finish()
        for bucket in self._assembly.parted:  # one adds the embedding's, the other one the head's
            all_reduce_(self._work.mesh.ends, self._gradients[bucket])
        sum_partial_(self._work.mesh.tensor, self._gradients, self._assembly.partial)

    def _vote(self) -> None:
        norm, ballot = self._assembly.norm, self._ballot
        own = norm.measure(self._gradients)
        ballot.cell, ballot.norm_units = own.cell, own.units
        ballot.loads = self._assembly.loads
        ballot.sealed_step, ready = self._work.snapshots()
        ballot.unready = int(not ready)
        self._total = vote(self._work.mesh.world, ballot)
        self._norm = norm.total(own, self._total.cell, self._total.norm_units).root

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
            stable_step=total.sealed_step,
            snapshot=not total.unready and total.sealed_step is not None,
        )

    def _apply(self, rates: Rates) -> None:
        state, optimizer = self._assembly.state, self._assembly.spec.optimizer
        state.num_updates += 1
        optimizer.update(state.shards, self._gradients, int(state.num_updates), rates)
        if self._total.loads is not None:
            rebalance_(state, self._total.loads, self._assembly.spec.router.balance)
        self._assembly.expire()
