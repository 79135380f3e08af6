"""Linear maps whose backward can write a weight's gradient straight to where it belongs.

autograd makes a gradient in memory of its own and then adds it to what is there: two passes over
memory for every microbatch, as much as a quarter of the backward of a large map with few tokens.
A matrix product adds as it goes for nothing.

Maps of one input are one product where their weights lie one after the other, as those of queries,
keys and values do in a flat buffer: fewer and larger products, and one gradient of the input
instead of several that have to be added up. Their parameters stay those of each; another sharing of
a layer's width puts other rows together, and rounds in another order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

_LARGE = 1 << 17  # elements: below it a function in Python costs more than it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardHalf:
    """What backward computes of a map: gradients of its input, of its weights, or both.

    autograd tells its own maps which of their gradients are asked for, but not those in Python.
    """

    inputs: bool = True
    weights: bool = True


BOTH = BackwardHalf()
INPUTS = BackwardHalf(weights=False)
WEIGHTS = BackwardHalf(inputs=False)


class InPlaceGradient(nn.Parameter):
    """A parameter that has a `grad` before backward, to which backward may add by itself.

    Hooks on its gradient do not run. One that `is_written` gets all of it from the backward of one
    map. What is in the `grad` of a `blank` one is nobody's: that map then writes instead of adding.
    """

    asked = BOTH
    is_written = False
    blank = False


def half_of(weight: Tensor) -> BackwardHalf:
    """Which half of the backward of this weight's map is asked for just now."""
    return weight.asked if isinstance(weight, InPlaceGradient) else BOTH


class Linear(nn.Module):
    """A projection; torch's own would draw values that the model draws again.

    `joined` is one map of this and of those that follow it wherever they are computed together, or
    empty. It stands in a tuple, so that its parameters are nobody's by name.
    """

    joined: "tuple[Linear, ...]"

    def __init__(self, num_in: int, num_out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.joined = ()
        self.weight = nn.Parameter(torch.empty(num_out, num_in))
        self.bias = nn.Parameter(torch.empty(num_out)) if bias else None

    @classmethod
    def of(cls, weight: nn.Parameter, bias: nn.Parameter | None = None) -> "Linear":
        """One of these parameters."""
        linear = cls(0, 0)
        linear.weight, linear.bias = weight, bias
        linear.settle()
        return linear

    def settle(self) -> None:
        """Marks the weight, which nobody else computes with, if backward writes its gradient."""
        if isinstance(self.weight, InPlaceGradient):
            self.weight.is_written = self.weight.numel() >= _LARGE

    def forward(self, x_BTC: Tensor) -> Tensor:
        if isinstance(self.weight, InPlaceGradient) and self.weight.numel() >= _LARGE:
            out_BTF: Tensor = _Product.apply(x_BTC, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return out_BTF
        return functional.linear(x_BTC, self.weight, self.bias)


def as_one(linears: Sequence[Linear]) -> Sequence[Linear]:
    """What to compute of several maps of one input: one that is all of them, if there is one."""
    return linears[0].joined or linears


def parted(outs: Sequence[Tensor], linears: Sequence[Linear]) -> tuple[Tensor, ...]:
    """The output of each, out of what `as_one` of them computes."""
    if len(outs) == len(linears):
        return tuple(outs)
    return torch.split(outs[0], [len(linear.weight) for linear in linears], -1)


def weight_gradient(weight_FC: Tensor, grad_NF: Tensor, x_NC: Tensor) -> Tensor | None:
    """The gradient of a weight, None if it has been added to what is there already."""
    if isinstance(weight_FC, InPlaceGradient) and weight_FC.grad is not None:
        if weight_FC.blank:
            torch.mm(grad_NF.t(), x_NC, out=weight_FC.grad)
            weight_FC.blank = False
        else:
            weight_FC.grad.addmm_(grad_NF.t(), x_NC)
        return None
    return grad_NF.t() @ x_NC


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, weight_FC: Tensor, bias_F: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_BTC, weight_FC)
        return functional.linear(x_BTC, weight_FC, bias_F)

    @staticmethod
    def backward(ctx: Any, grad_BTF: Tensor) -> tuple[Tensor | None, ...]:
        x_BTC, weight_FC = ctx.saved_tensors
        half, grad_NF = half_of(weight_FC), grad_BTF.flatten(0, -2)
        of_input = of_weight = of_bias = None
        if half.weights:
            of_weight = weight_gradient(weight_FC, grad_NF, x_BTC.flatten(0, -2))
            of_bias = grad_NF.sum(0) if ctx.needs_input_grad[2] else None
        if half.inputs:
            of_input = (grad_NF @ weight_FC).view_as(x_BTC)
        return of_input, of_weight, of_bias
