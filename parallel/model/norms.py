"""Norms over the last dimension. Each row is normed by itself, so that shares of rows just work.

A norm is also `scaled` of `unscaled`, in bits and in gradients, with all of its weights in the one.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from remesh.parallel.plan.model_config import ModelConfig


class RMSNorm(nn.Module):
    """Source: Zhang and Sennrich 2019 (arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return root_mean_square_normed(x, self.weight, self.eps)

    def unscaled(self, x: Tensor) -> Tensor:
        """In fp32 at least, as the whole norm is computed."""
        return _unscaled(x, self.eps)

    def scaled(self, x: Tensor) -> Tensor:
        return (x * self.weight).to(self.weight.dtype)


class LayerNorm(nn.Module):
    """Source: Ba et al. 2016 (arXiv:1607.06450)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)

    def unscaled(self, x: Tensor) -> Tensor:
        """All of it is one kernel."""
        return x

    def scaled(self, x: Tensor) -> Tensor:
        return self(x)  # type: ignore[no-any-return]


NormModule = RMSNorm | LayerNorm


def residual_norm(config: ModelConfig) -> NormModule:
    """The norm of the residual stream that the config asks for."""
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    return kind(config.width, config.norm_eps)


def root_mean_square_normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out: Tensor = (_unscaled(x, eps) * weight).to(x.dtype)
    return out


def _unscaled(x: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed: Tensor = _RootMeanSquare.apply(wide, eps)  # type: ignore[no-untyped-call]
    return normed


class _RootMeanSquare(Function):
    """Rows divided by their root mean square; torch's own takes twice as many passes each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        inverse = squares.div_(x.shape[-1]).add_(eps).rsqrt_()
        normed: Tensor = x * inverse
        ctx.save_for_backward(normed, inverse)
        return normed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The gradient less its part along the row, as a norm does not see the row's length."""
        normed, inverse = ctx.saved_tensors
        along = (grad * normed).sum(-1, keepdim=True).div_(-grad.shape[-1])
        of_x: Tensor = torch.addcmul(grad, normed, along).mul_(inverse)
        return of_x, None
