"""Forward and backward of a microbatch, block by block.

Each block has an autograd graph of its own, so that between two blocks weights can be fetched and
freed, gradients sent on their way, and a block computed a second time instead of being kept. Hooks
on one graph of the whole model were the alternative: they run where autograd's order puts them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd import Variable

from remesh.parallel.model.maths import Losses
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.sums.gradients import Accumulators
from remesh.parallel.techniques.zero import Gathering

Block = Callable[[Tensor], Tensor]


@dataclass(slots=True, kw_only=True)
class Passage:
    """A microbatch between forward and backward.

    `outputs` are those of the blocks, `inputs` what they were computed from, cut off from the block
    before. An output without a graph is computed again.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    losses: Losses


class Passes:
    """Phases of a pass are numbered: each block's forward, then each block's backward."""

    def __init__(
        self,
        model: Transformer,
        gathering: Gathering,
        accumulators: Accumulators,
        recomputed_layers: Sequence[int],
    ) -> None:
        self._model = model
        self._gathering = gathering
        self._accumulators = accumulators
        self._blocks: list[Block] = [model.embed, *model.layers]
        self._recomputed = frozenset(layer + 1 for layer in recomputed_layers)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Passage:
        """Raises: Cancelled, GroupError."""
        inputs, outputs = [tokens_BT], []
        for number, block in enumerate(self._blocks):
            self._gathering.enter(number)
            with torch.set_grad_enabled(number not in self._recomputed):
                outputs.append(block(inputs[-1]))
            inputs.append(outputs[-1].detach().requires_grad_())
            self._gathering.leave(number)
        head = len(self._blocks)
        self._gathering.enter(head)
        losses = self._model.loss(inputs[-1], targets_BT)
        self._gathering.leave(head)
        return Passage(inputs=inputs, outputs=outputs, losses=losses)

    def backward(self, passage: Passage | None, leaf: int | None, *, ends_leaf: bool) -> None:
        """Adds the gradients to those of `leaf`, and sends on what the leaf's end completes.

        Without a passage it only takes part in the collectives. Raises: Cancelled, GroupError.
        """
        head = len(self._blocks)
        for block in reversed(range(head + 1)):
            phase = 2 * head + 1 - block
            self._gathering.enter(phase)
            if passage is not None:
                self._accumulators.open(block)
                self._run_backward(passage, block)
            self._accumulators.close(block, leaf, ends_leaf=ends_leaf)
            self._gathering.leave(phase)

    def keep_company(self, num_microbatches: int) -> None:
        """Takes part in the collectives of a leaf that other ranks compute.

        Raises: Cancelled, GroupError.
        """
        for number in range(num_microbatches):
            for phase in range(len(self._blocks) + 1):
                self._gathering.enter(phase)
                self._gathering.leave(phase)
            self.backward(None, None, ends_leaf=number == num_microbatches - 1)

    def _run_backward(self, passage: Passage, block: int) -> None:
        if block == len(self._blocks):
            passage.losses.objective.backward()  # type: ignore[no-untyped-call]
            return
        output, gradient = passage.outputs.pop(), passage.inputs.pop().grad
        if block in self._recomputed:
            with torch.enable_grad():
                output = self._blocks[block](passage.inputs[-1])
        # torch.autograd.backward does the same after a check that imports sympy: 0.8 s a process.
        Variable._execution_engine.run_backward(  # noqa: SLF001
            (output,), (gradient,), False, False, (), True, True
        )
