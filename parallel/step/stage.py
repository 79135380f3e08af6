"""Forward and backward of a microbatch through a run of blocks, block by block.

Each block has an autograd graph of its own, so that between two blocks weights can be fetched and
freed, gradients sent on their way, and a block computed a second time instead of being kept. Hooks
on one graph of the whole model were the alternative: they run where autograd's order puts them.

For the same reason a model can be cut between any two blocks: what a stage takes and gives is what
its first block takes and its last one gives, forward and backward. And backward may come in two
halves: the gradient of a stage's input, for which the stage before waits, and those of its weights.
And two passes may go side by side, a block of the one beside a block of the other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor
from torch.autograd import Variable

from remesh.parallel.model.model_blocks import ModelBlock
from remesh.parallel.numerics.losses import Losses
from remesh.parallel.plan.schedules.operations import Pass
from remesh.parallel.sums.gradients import Accumulators
from remesh.parallel.techniques.halved import Halved, Later
from remesh.parallel.techniques.taking_turns import BothRun
from remesh.parallel.techniques.zero import Gathering


@dataclass(slots=True, kw_only=True)
class Passage:
    """A microbatch between forward and backward.

    `outputs` are those of the blocks, the last one what the next stage computes from; `inputs` what
    they were computed from, cut off from the block before. An output without a graph is computed
    again. Only the last stage has `losses`, and its last output is their objective. `gradient` is
    that of the block whose backward comes next. `later` is what the first half of backward leaves
    for the second, by block.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    losses: Losses | None = None
    gradient: Tensor | None = None
    later: dict[int, list[Later]] = field(default_factory=dict)


BlockRun = Callable[[], object] | None  # of a pass: a block, or nothing, with its weights at hand


class Stage:
    """The blocks `span` of a model, on one rank.

    Each block of each pass is a phase of the rank's schedule. Only a model of `halved` maps can go
    backward in halves.
    """

    def __init__(
        self,
        blocks: Sequence[ModelBlock],
        span: range,
        gathering: Gathering,
        accumulators: Accumulators,
        halved: Halved | None = None,
    ) -> None:
        self._blocks = blocks
        self._span = span
        self._gathering = gathering
        self._accumulators = accumulators
        self._halved = halved

    def forward(self, x: Tensor, targets: Tensor | None) -> Passage:
        """From tokens, or from what the stage before gives. The last stage needs targets.

        Raises: Cancelled, GroupError.
        """
        passage = Passage()
        self._run(self.forward_parts(passage, x, targets))
        return passage

    def backward(
        self, passage: Passage, gradient: Tensor | None, leaf: int, *, ends_leaf: bool
    ) -> Tensor | None:
        """Adds the gradients to those of `leaf`, and sends on what the leaf's end completes.

        `gradient` is that of the stage's output, None in the last stage; what comes back is that of
        its input, None of tokens.

        Raises: Cancelled, GroupError.
        """
        passage.gradient = gradient
        self._run(self.backward_parts(passage, leaf, ends_leaf=ends_leaf))
        return passage.gradient

    def forward_parts(
        self, passage: Passage, x: Tensor, targets: Tensor | None
    ) -> Iterator[BlockRun]:
        """What `forward` consists of, for who computes something else beside it."""
        for number in self._span:
            yield partial(self._forward_block, passage, number, x, targets)

    def backward_parts(self, passage: Passage, leaf: int, *, ends_leaf: bool) -> Iterator[BlockRun]:
        """What `backward` consists of, which begins and ends with the gradient of the passage."""
        for number in reversed(self._span):
            yield partial(self._backward_block, passage, number, leaf, ends_leaf=ends_leaf)

    def backward_input(self, passage: Passage, gradient: Tensor | None) -> Tensor | None:
        """The first half: the gradient of the input, as of `backward`.

        Raises: Cancelled, GroupError.
        """
        assert self._halved, "no schedule asked for halves when the model was made"
        for number in reversed(self._span):
            self._gathering.enter()
            x, output = self._computed(passage, number)
            later: list[Later] = []
            if x.is_floating_point():
                self._halved.later = later
                _run(output, gradient)
                self._halved.later = None
            else:
                later.append(partial(_run, output, gradient))
            passage.later[number] = later
            gradient = x.grad
            self._gathering.leave()
        return gradient

    def backward_weights(self, passage: Passage, leaf: int, *, ends_leaf: bool) -> None:
        """The second half: adds to the gradients of `leaf`, and sends on what its end completes.

        Raises: Cancelled, GroupError.
        """
        for number in reversed(self._span):
            self._gathering.enter()
            self._accumulators.open(number)
            for add in passage.later.pop(number):
                add()
            self._accumulators.close(number, leaf, ends_leaf=ends_leaf)
            self._gathering.leave()

    def keep_company(self, what: Pass, *, ends_leaf: bool) -> None:
        """Takes part in the collectives of what other ranks compute here.

        Raises: Cancelled, GroupError.
        """
        self._run(self.company_parts(what, ends_leaf=ends_leaf))

    def company_parts(self, what: Pass, *, ends_leaf: bool) -> Iterator[BlockRun]:
        """What `keep_company` consists of."""
        adds = what in ("backward", "weight")
        for number in self._span if what == "forward" else reversed(self._span):
            if adds:
                yield partial(self._accumulators.close, number, None, ends_leaf=ends_leaf)
            else:
                yield None

    def _run(self, parts: Iterator[BlockRun]) -> None:
        for part in parts:
            self._gathering.enter()
            if part is not None:
                part()
            self._gathering.leave()

    def _forward_block(
        self, passage: Passage, number: int, x: Tensor, targets: Tensor | None
    ) -> None:
        """`x` is the input of the first one."""
        block = self._blocks[number]
        if passage.outputs:
            x = passage.outputs[-1]
        if x.is_floating_point():  # tokens have no gradient
            x = x.detach().requires_grad_()
        with torch.set_grad_enabled(not block.recomputed):
            output = block.compute(x, targets)
        if isinstance(output, Losses):
            passage.losses, output = output, output.objective
        passage.inputs.append(x)
        passage.outputs.append(output)

    def _backward_block(self, passage: Passage, number: int, leaf: int, *, ends_leaf: bool) -> None:
        self._accumulators.open(number)
        x, output = self._computed(passage, number)
        _run(output, passage.gradient)
        passage.gradient = x.grad
        self._accumulators.close(number, leaf, ends_leaf=ends_leaf)

    def _computed(self, passage: Passage, number: int) -> tuple[Tensor, Tensor]:
        """Input and output of a block, with a graph between them."""
        x, output, block = passage.inputs.pop(), passage.outputs.pop(), self._blocks[number]
        if block.recomputed:
            with torch.enable_grad():
                again = block.compute(x, None)
            assert isinstance(again, Tensor)
            output = again
        return x, output


def run_side_by_side(
    gathering: Gathering, run: BothRun, owns: Iterator[BlockRun], guests: Iterator[BlockRun]
) -> None:
    """Two passes, a block of each together as long as both have one: one phase of the schedule.

    Raises: Cancelled, GroupError.
    """
    for own, guest in zip_longest(owns, guests):
        gathering.enter()
        run(own, guest)
        gathering.leave()


def _run(output: Tensor, gradient: Tensor | None) -> None:
    """Adds to the gradients of all that the output was computed from.

    torch.autograd.backward does the same after a check that imports sympy: 0.8 s a process.
    """
    if gradient is None:
        gradient = torch.ones_like(output)
    Variable._execution_engine.run_backward(  # noqa: SLF001
        (output,), (gradient,), False, False, (), True, True
    )
