"""Backward in two halves: gradients of inputs first, those of weights when there is time for them.

Each map with weights gets a graph of its own inside the block's. The first half runs it as far as
its input; the second half, later, as far as its weights, by the kernels that would have run at
once, so that the bits are the same. What lies between the maps is freed with the first half: what
waits is the input of each map and the gradient of its output.

One graph of the whole block that is run twice was the alternative: it keeps every activation until
the second half, and computes most of the first half again. Where both halves come at once, as in
schedules that never ask for one alone, the model is given no such maps and pays nothing for them.

Weights of maps inside of a region that is computed again have no graph that outlives it. There is
one kind, the norms of heads: their gradients, of a few dozen elements, are computed with those of
the inputs and added with those of the weights.

Source: Qi et al. 2023 (arXiv:2401.10241), 2 and 3.

Shapes: B sequences, T positions, C width, F the width that is cut into shares, V vocabulary,
H query heads, D head width, E experts, K kv heads or experts of a token, M rows of tokens, sorted
by expert.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function, Variable
from torch.autograd.graph import GradientEdge, get_gradient_edge

from remesh.parallel.model.expert_maps import Stack
from remesh.parallel.model.linear import (
    BOTH,
    INPUTS,
    WEIGHTS,
    BackwardHalf,
    InPlaceGradient,
    as_one,
)
from remesh.parallel.model.maths import Around, Linear, Maths
from remesh.parallel.model.norms import NormModule

Later = Callable[[], object]  # adds gradients to those of weights


class Halved(Around):
    """The `Maths` of a model whose backward may leave the weights for later.

    While `later` is a list, backward computes no gradient of a weight, but puts there what does.
    Tokens have no gradient, so all of the backward of `embed` is the second half; `attend` has no
    weights, and all of its is the first.
    """

    def __init__(self, maths: Maths) -> None:
        self.later: list[Later] | None = None
        super().__init__(maths)

    def columns(self, x_BTC: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        parameters = [p for linear in as_one(linears) for p in (linear.weight, linear.bias)]
        weights = [p for p in parameters if p is not None]
        return self._map(lambda own_BTC: self._maths.columns(own_BTC, *linears), x_BTC, weights)

    def row(self, x_BTF: Tensor, linear: Linear) -> Tensor:
        weights = [p for p in (linear.weight, linear.bias) if p is not None]
        [out_BTC] = self._map(lambda own_BTF: (self._maths.row(own_BTF, linear),), x_BTF, weights)
        return out_BTC

    def outer(self, x_BTC: Tensor, linear: Linear) -> Tensor:
        [out_BTF] = self._map(
            lambda own_BTC: (self._maths.outer(own_BTC, linear),), x_BTC, [linear.weight]
        )
        return out_BTF

    def products(self, x_MC: Tensor, counts: Sequence[int], *stacks: Stack) -> tuple[Tensor, ...]:
        weights = [stack.weight for stack in stacks]
        return self._map(
            lambda own_MC: self._maths.products(own_MC, counts, *stacks), x_MC, weights
        )

    def normed(self, x_BTC: Tensor, norm: NormModule) -> Tensor:
        """Only what has weights is a map: all else adds up in the block as it always does."""
        weights = list(norm.parameters())
        unscaled_BTC = norm.unscaled(x_BTC)
        [out_BTC] = self._map(lambda own_BTC: (norm.scaled(own_BTC),), unscaled_BTC, weights)
        return out_BTC

    def inner(self, weight_D: nn.Parameter) -> Tensor:
        inner_D: Tensor = _Inner.apply(self, weight_D)  # type: ignore[no-untyped-call]
        return inner_D

    def _map(
        self,
        compute: Callable[[Tensor], tuple[Tensor, ...]],
        x: Tensor,
        weights: Sequence[nn.Parameter],
    ) -> tuple[Tensor, ...]:
        outs: tuple[Tensor, ...] = _Map.apply(self, compute, x, weights)  # type: ignore[no-untyped-call]
        return outs


class _Map(Function):
    @staticmethod
    def forward(
        ctx: Any,
        halved: Halved,
        compute: Callable[[Tensor], tuple[Tensor, ...]],
        x: Tensor,
        weights: Sequence[nn.Parameter],
    ) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            own = x.detach().requires_grad_()
            outs = compute(own)
        ctx.halved, ctx.weights, ctx.own = halved, tuple(weights), own
        ctx.roots = tuple(get_gradient_edge(out) for out in outs)  # they keep no values
        return tuple(out.detach() for out in outs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor | None, None]:
        own, roots, weights, later = ctx.own, ctx.roots, ctx.weights, ctx.halved.later
        ctx.own = ctx.roots = None
        if later is None:
            _run(roots, gradients, weights, BOTH, own)
        else:
            _run(roots, gradients, weights, INPUTS, own)
            later.append(lambda: _run(roots, gradients, weights, WEIGHTS))
        of_x, own.grad = own.grad, None  # the graph of the second half would keep it
        return None, None, of_x, None


class _Inner(Function):
    @staticmethod
    def forward(ctx: Any, halved: Halved, weight_D: nn.Parameter) -> Tensor:
        ctx.halved, ctx.weight = halved, weight_D
        return weight_D.view_as(weight_D)

    @staticmethod
    def backward(ctx: Any, gradient_D: Tensor) -> tuple[None, Tensor | None]:
        later, weight_D = ctx.halved.later, ctx.weight
        if later is None:
            return None, gradient_D
        later.append(lambda: weight_D.grad.add_(gradient_D))
        return None, None


def _run(
    roots: tuple[GradientEdge, ...],
    gradients: tuple[Tensor, ...],
    weights: tuple[nn.Parameter, ...],
    half: BackwardHalf,
    own: Tensor | None = None,
) -> None:
    """Backward of a map, up to its input `own`, its weights, or both."""
    ends = (*(weights if half.weights else ()), *(() if own is None else (own,)))
    for weight in weights:
        if isinstance(weight, InPlaceGradient):
            weight.asked = half
    try:
        Variable._execution_engine.run_backward(  # noqa: SLF001 - as in stage.py
            roots, gradients, not half.weights, False, ends, True, True
        )
    finally:
        for weight in weights:
            if isinstance(weight, InPlaceGradient):
                weight.asked = BOTH
