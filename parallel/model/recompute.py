"""A result that keeps only its inputs for backward, which computes it a second time.

torch.utils.checkpoint does the same for code of any kind. Here it would cost a second and 80 MB at
the first call of a process, for its ties to the compiler, and 0.2 ms at every other.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def recomputed(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`function(*tensors)`, in bits and in gradients.

    All tensors that it needs a gradient for must be among `tensors`, and all of these need one.
    """
    out: Tensor = _Recomputed.apply(function, *tensors)  # type: ignore[no-untyped-call]
    return out


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.function(*tensors)
        return None, *torch.autograd.grad(out, tensors, gradient)
