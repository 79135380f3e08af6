"""Where backward puts gradients, and how those of a whole step become the sum that a rank owns.

An accumulator is a flat buffer for the gradients of one bucket. Where two blocks share a parameter
there are two: what the one adds and what the other adds meet only after the sums over all leaves,
whether or not the two are on the same rank.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from remesh.parallel.model.linear import InPlaceGradient
from remesh.parallel.plan.buckets import Place
from remesh.parallel.sums.workspace import Workspace


class GradientSum(Protocol):
    """The sum of one accumulator over all leaves of all ranks.

    `take` a buffer for each leaf, or where there is one `take_blank`, with anything in it; `add` it
    with the leaf's gradient in it; where `add` says that there is something to exchange, `start`
    begins with it and `advance` finishes it. All ranks call these two in the same order.
    """

    def take(self) -> Tensor: ...

    def take_blank(self) -> Tensor | None: ...

    def add(self, leaf: int | None, gradient: Tensor | None) -> bool: ...

    def start(self) -> None: ...

    def advance(self) -> None: ...

    def total(self) -> Tensor:
        """The own shard of the sum, once a step, valid until `clear`."""
        ...

    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Parameters of the model and their places in an accumulator of `size` elements.

    Backward adds to `targets`, each where it lies: parameters, or several of them as one. Blocks
    from `first_block` to `last_block` contribute; backward comes to the first one last.
    """

    bucket: int
    size: int
    parameters: Mapping[str, nn.Parameter]
    targets: Sequence[tuple[nn.Parameter, Place]]
    first_block: int
    last_block: int


class Accumulators:
    """The gradients of one step. `sums` belong to `contributions`, one each. `scratch` is the type
    in which backward computes them, where they are added up in another one.

    Ranks that exchange every leaf have the same schedule, and begin each exchange as soon as it is
    due. Those that exchange once a step may have different ones: they begin in one order, from the
    end of the model to its front.
    """

    def __init__(
        self,
        contributions: Sequence[Contribution],
        sums: Sequence[GradientSum],
        workspace: Workspace,
        scratch: torch.dtype | None,
        *,
        in_rounds: bool,
    ) -> None:
        self._contributions = contributions
        self._sums = sums
        self._workspace = workspace
        self._scratch_type = scratch
        self._buffers: dict[int, Tensor] = {}
        self._scratch: dict[int, Tensor] = {}
        self._started: deque[GradientSum] = deque()
        self._in_rounds = in_rounds
        self._added = [_added(contribution) for contribution in contributions]
        self._order = sorted(
            range(len(sums)), key=lambda number: (-contributions[number].first_block, number)
        )
        self._due: set[int] = set()
        self._num_begun = 0

    def open(self, block: int) -> None:
        """Makes room for the gradients of a block whose backward comes next."""
        for number, contribution in enumerate(self._contributions):
            if contribution.last_block != block:
                continue
            if self._scratch_type is None:
                self._open_in_place(number)
                continue
            if number not in self._buffers:
                self._buffers[number] = self._sums[number].take()
            size = self._buffers[number].numel()
            self._scratch[number] = self._workspace.take(size, self._scratch_type)
            _point(contribution, self._scratch[number])
            self._blank(number, self._scratch[number])

    def close(self, block: int, leaf: int | None, *, ends_leaf: bool) -> None:
        """After the backward of a block: what it completes is added up and sent on its way.

        `leaf` is None on a rank that only keeps the others company. Raises: Cancelled, GroupError.
        """
        for number, contribution in enumerate(self._contributions):
            if contribution.first_block == block:
                self._take_in_scratch(number)
                if ends_leaf:
                    self._add(number, leaf)

    def finish(self) -> list[Tensor]:
        """The own shard of the whole gradient, by bucket. Raises: Cancelled, GroupError."""
        while self._started:
            self._started.popleft().advance()
        totals: dict[int, Tensor] = {}
        for contribution, gradient_sum in zip(self._contributions, self._sums, strict=True):
            total = gradient_sum.total()
            if contribution.bucket in totals:
                totals[contribution.bucket].add_(total)
            else:
                totals[contribution.bucket] = total
        return [totals[bucket] for bucket in sorted(totals)]

    def clear(self) -> None:
        """Ends a step that was whole."""
        for gradient_sum in self._sums:
            gradient_sum.clear()
        self._num_begun = 0

    def _open_in_place(self, number: int) -> None:
        """What backward computes is added to the sum where it lies."""
        if number in self._buffers:
            return
        blank = self._sums[number].take_blank()
        self._buffers[number] = self._sums[number].take() if blank is None else blank
        _point(self._contributions[number], self._buffers[number])
        if blank is not None:
            self._blank(number, blank)

    def _blank(self, number: int, flat: Tensor) -> None:
        """Has what backward writes written, and nothing where it only adds."""
        for parameter, _ in self._contributions[number].targets:
            if isinstance(parameter, InPlaceGradient):
                parameter.blank = parameter.is_written
        for span in self._added[number]:
            flat[span].zero_()

    def _take_in_scratch(self, number: int) -> None:
        scratch = self._scratch.pop(number, None)
        if scratch is not None:
            self._buffers[number].add_(scratch)
            self._workspace.give(scratch)

    def _add(self, number: int, leaf: int | None) -> None:
        gradient_sum = self._sums[number]
        while gradient_sum in self._started:  # the leaf before, of a model with one bucket
            self._started.popleft().advance()
        if not gradient_sum.add(leaf, self._buffers.pop(number, None)):
            return
        if self._in_rounds:
            self._begin(number)
            return
        self._due.add(number)
        while self._due and self._order[self._num_begun] in self._due:
            number = self._order[self._num_begun]
            self._due.remove(number)
            self._num_begun += 1
            self._begin(number)

    def _begin(self, number: int) -> None:
        """One exchange is under way while the next bucket is computed."""
        self._sums[number].start()
        self._started.append(self._sums[number])
        while len(self._started) > 1:
            self._started.popleft().advance()


def _added(contribution: Contribution) -> list[slice]:
    """Where an accumulator has to be 0 first: all but what a backward writes as a whole."""
    found, stop = [], 0
    for parameter, place in sorted(contribution.targets, key=lambda target: target[1].start):
        if isinstance(parameter, InPlaceGradient) and parameter.is_written:
            found += [slice(stop, place.start)] if stop < place.start else []
            stop = place.stop
    return [*found, slice(stop, None)]


def _point(contribution: Contribution, flat: Tensor) -> None:
    """Has the next backward add to `flat`."""
    for parameter, place in contribution.targets:
        parameter.grad = flat[place.start : place.stop].view(place.shape)
