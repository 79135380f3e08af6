"""A result that keeps only its inputs for backward, which computes it a second time.

torch.utils.checkpoint does the same for code of any kind. Here it would cost a second and 80 MB at
the first call of a process, for its ties to the compiler, and 0.2 ms at every other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """What backward computes again instead of keeping it, in every `every`-th layer.

    "attention" is the core attention; "full" keeps a layer's input only.
    Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 5.
    """

    mode: Literal["none", "attention", "full"] = "none"
    every: int = 1

    def applies(self, mode: str, layer: int) -> bool:
        """Whether this layer is computed again in this way."""
        return mode == self.mode and layer % self.every == 0


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
