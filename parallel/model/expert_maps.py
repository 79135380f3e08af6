"""Maps of several experts, one behind the other in one tensor, each of its own rows.

Rows lie sorted by expert. An expert without rows has no product, and the gradient of its map is
exactly 0: no memory is handed on that was not written.

Shapes: M rows, sorted by expert; E experts, C and F the widths of a map.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from remesh.parallel.model.linear import InPlaceGradient, half_of
from remesh.parallel.model.stack_products import StackProducts, products_of


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
        ctx.products = products_of(counts, x_MC, weights_EFC)
        ctx.save_for_backward(x_MC, *weights_EFC)
        found: tuple[Tensor, ...] = ctx.products.outputs(x_MC, weights_EFC)
        return found

    @staticmethod
    def backward(ctx: Any, *grads_MF: Tensor) -> tuple[Tensor | None, ...]:
        x_MC, *weights_EFC = ctx.saved_tensors
        half = half_of(weights_EFC[0])
        of_input = ctx.products.of_input(grads_MF, weights_EFC) if half.inputs else None
        of_weights: list[Tensor | None] = [None] * len(weights_EFC)
        if half.weights:
            of_weights = [
                _weight_gradient(ctx.products, weight_EFC, grad_MF, x_MC)
                for weight_EFC, grad_MF in zip(weights_EFC, grads_MF, strict=True)
            ]
        return None, of_input, *of_weights


def _weight_gradient(
    products: StackProducts, weight_EFC: Tensor, grad_MF: Tensor, x_MC: Tensor
) -> Tensor | None:
    """The gradient of a stack, None if it has been added to what is there already."""
    adds = isinstance(weight_EFC, InPlaceGradient) and weight_EFC.grad is not None
    total_EFC = weight_EFC.grad if adds else torch.zeros_like(weight_EFC)
    assert total_EFC is not None
    products.add_of_weight(total_EFC, grad_MF, x_MC)
    return None if adds else total_EFC
