"""Forward and backward of a microbatch through a run of blocks, block by block.

Each block has an autograd graph of its own, so that between two blocks weights can be fetched and
freed, gradients sent on their way, and a block computed a second time instead of being kept. Hooks
on one graph of the whole model were the alternative: they run where autograd's order puts them.

For the same reason a model can be cut between any two blocks: what a stage takes and gives is what
its first block takes and its last one gives, forward and backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd import Variable

from remesh.parallel.model.model_blocks import ModelBlock
from remesh.parallel.numerics.losses import Losses
from remesh.parallel.plan.schedules.operations import Pass
from remesh.parallel.sums.gradients import Accumulators
from remesh.parallel.techniques.zero import Gathering


@dataclass(slots=True, kw_only=True)
class Passage:
    """A microbatch between forward and backward.

    `outputs` are those of the blocks, the last one what the next stage computes from; `inputs` what
    they were computed from, cut off from the block before. An output without a graph is computed
    again. Only the last stage has `losses`, and its last output is their objective.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    losses: Losses | None = None


class Stage:
    """The blocks `span` of a model, on one rank.

    Phases of a pass are numbered: each block's forward, then each block's backward.
    """

    def __init__(
        self,
        blocks: Sequence[ModelBlock],
        span: range,
        gathering: Gathering,
        accumulators: Accumulators,
    ) -> None:
        self._blocks = blocks
        self._span = span
        self._gathering = gathering
        self._accumulators = accumulators

    def forward(self, x: Tensor, targets: Tensor | None) -> Passage:
        """From tokens, or from what the stage before gives. The last stage needs targets.

        Raises: Cancelled, GroupError.
        """
        passage = Passage()
        for phase, number in enumerate(self._span):
            self._gathering.enter(phase)
            x = self._run_forward(passage, self._blocks[number], x, targets)
            self._gathering.leave(phase)
        return passage

    def backward(
        self, passage: Passage | None, gradient: Tensor | None, leaf: int | None, *, ends_leaf: bool
    ) -> Tensor | None:
        """Adds the gradients to those of `leaf`, and sends on what the leaf's end completes.

        `gradient` is that of the stage's output, None in the last stage; what comes back is that of
        its input, None of tokens. Without a passage it only takes part in the collectives.

        Raises: Cancelled, GroupError.
        """
        for phase, number in enumerate(reversed(self._span), start=len(self._span)):
            self._gathering.enter(phase)
            if passage is not None:
                self._accumulators.open(number)
                gradient = self._run_backward(passage, self._blocks[number], gradient)
            self._accumulators.close(number, leaf, ends_leaf=ends_leaf)
            self._gathering.leave(phase)
        return gradient

    def keep_company(self, what: Pass, *, ends_leaf: bool) -> None:
        """Takes part in the collectives of what other ranks compute here.

        Raises: Cancelled, GroupError.
        """
        if what == "backward":
            self.backward(None, None, None, ends_leaf=ends_leaf)
            return
        for phase in range(len(self._span)):
            self._gathering.enter(phase)
            self._gathering.leave(phase)

    @staticmethod
    def _run_forward(
        passage: Passage, block: ModelBlock, x: Tensor, targets: Tensor | None
    ) -> Tensor:
        if x.is_floating_point():  # tokens have no gradient
            x = x.detach().requires_grad_()
        with torch.set_grad_enabled(not block.recomputed):
            output = block.compute(x, targets)
        if isinstance(output, Losses):
            passage.losses, output = output, output.objective
        passage.inputs.append(x)
        passage.outputs.append(output)
        return output

    @staticmethod
    def _run_backward(
        passage: Passage, block: ModelBlock, gradient: Tensor | None
    ) -> Tensor | None:
        """The gradient of the block's input. Those of its weights go where they have a place."""
        x, output = passage.inputs.pop(), passage.outputs.pop()
        if block.recomputed:
            with torch.enable_grad():
                again = block.compute(x, None)
            assert isinstance(again, Tensor)
            output = again
        if gradient is None:
            gradient = torch.ones_like(output)
        # torch.autograd.backward does the same after a check that imports sympy: 0.8 s a process.
        Variable._execution_engine.run_backward(  # noqa: SLF001
            (output,), (gradient,), False, False, (), True, True
        )
        return x.grad
