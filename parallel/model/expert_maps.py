"""Maps of several experts, one behind the other in one tensor, each of its own rows.

Rows lie sorted by expert. An expert without rows has no product, and the gradient of its map is
exactly 0: no memory is handed on that was not written.

Shapes: M rows, sorted by expert; E experts, C and F the widths of a map.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from remesh.parallel.model.linear import InPlaceGradient, half_of


class Stack(nn.Module):
    """Linear maps without biases, `weight` (E, F, C)."""

    def __init__(self, num_experts: int, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, num_out, num_in))


def products(x_MC: Tensor, counts: Sequence[int], *stacks: Stack) -> tuple[Tensor, ...]:
    """Several maps of one input: rows of the first expert, `counts[0]` of them, then of the next.

    Ranks that hold some experts give their rows alone, and hold as many maps as there are counts.
    """
    weights_EFC = [stack.weight for stack in stacks]
    outs_MF: tuple[Tensor, ...] = _Products.apply(tuple(counts), x_MC, *weights_EFC)  # type: ignore[no-untyped-call]
    return outs_MF


class _Products(Function):
    @staticmethod
    def forward(
        ctx: Any, counts: tuple[int, ...], x_MC: Tensor, *weights_EFC: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.counts = counts
        ctx.save_for_backward(x_MC, *weights_EFC)
        outs_MF = tuple(x_MC.new_empty(len(x_MC), weight.shape[1]) for weight in weights_EFC)
        for expert, rows in _runs(counts):
            for weight_EFC, out_MF in zip(weights_EFC, outs_MF, strict=True):
                torch.mm(x_MC[rows], weight_EFC[expert].t(), out=out_MF[rows])
        return outs_MF

    @staticmethod
    def backward(ctx: Any, *grads_MF: Tensor) -> tuple[Tensor | None, ...]:
        x_MC, *weights_EFC = ctx.saved_tensors
        counts, half = ctx.counts, half_of(weights_EFC[0])
        of_input = torch.empty_like(x_MC) if half.inputs else None
        if of_input is not None:
            for expert, rows in _runs(counts):
                torch.mm(grads_MF[0][rows], weights_EFC[0][expert], out=of_input[rows])
                for grad_MF, weight_EFC in zip(grads_MF[1:], weights_EFC[1:], strict=True):
                    of_input[rows].addmm_(grad_MF[rows], weight_EFC[expert])
        of_weights: list[Tensor | None] = [None] * len(weights_EFC)
        if half.weights:
            of_weights = [
                _weight_gradient(weight_EFC, grad_MF, x_MC, counts)
                for weight_EFC, grad_MF in zip(weights_EFC, grads_MF, strict=True)
            ]
        return None, of_input, *of_weights


def _weight_gradient(
    weight_EFC: Tensor, grad_MF: Tensor, x_MC: Tensor, counts: Sequence[int]
) -> Tensor | None:
    """The gradient of a stack, None if it has been added to what is there already."""
    adds = isinstance(weight_EFC, InPlaceGradient) and weight_EFC.grad is not None
    total_EFC = weight_EFC.grad if adds else torch.zeros_like(weight_EFC)
    assert total_EFC is not None
    for expert, rows in _runs(counts):
        total_EFC[expert].addmm_(grad_MF[rows].t(), x_MC[rows])
    return None if adds else total_EFC


def _runs(counts: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Each expert that has rows, and which."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            yield expert, slice(start, start + count)
        start += count
