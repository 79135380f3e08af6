"""Losses as sums over tokens.

The mean is taken once, over all tokens of the global batch. Averaging the means of microbatches or
of ranks instead gives a token more weight the fewer tokens share its microbatch.

Shapes: B sequences, T positions, V vocabulary, N = B * T tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

IGNORE_INDEX = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Sums over the tokens of a microbatch, in nats, and their number, on the device.

    `objective` is what to run backward: cross-entropy and z-loss. `cross_entropy` is for the
    record, without a graph.
    """

    objective: Tensor
    cross_entropy: Tensor
    num_tokens: Tensor


def summed_cross_entropy(
    logits_BTV: Tensor,
    targets_BT: Tensor,
    z_loss: float = 0.0,
    ignore_index: int = IGNORE_INDEX,
) -> Losses:
    """Negative log-likelihoods and `z_loss` * log(Z)^2, Z the sum of the exponentials of logits.

    Summed in fp64 for fp64 logits, in fp32 for all others. Tokens whose target is `ignore_index`
    count nowhere; where all are, sums and gradients are 0.
    Source: Chowdhery et al. 2022 (arXiv:2204.02311), 5: z-loss with a factor of 1e-4.
    """
    logits_NV, targets_N = widened(logits_BTV.flatten(0, 1)), targets_BT.flatten()
    if z_loss:
        objective, cross_entropy = _WithZLoss.apply(logits_NV, targets_N, z_loss, ignore_index)  # type: ignore[no-untyped-call]
    else:
        objective = functional.cross_entropy(
            logits_NV, targets_N, ignore_index=ignore_index, reduction="sum"
        )
        cross_entropy = objective.detach()
    num_tokens = torch.count_nonzero(targets_N != ignore_index)
    return Losses(objective=objective, cross_entropy=cross_entropy, num_tokens=num_tokens)


def widened(logits: Tensor) -> Tensor:
    """The logits in the type in which sums over a vocabulary are taken."""
    return logits if logits.dtype == torch.float64 else logits.float()


class _WithZLoss(torch.autograd.Function):
    """Both losses from one softmax: two of them take three times as long."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, z_loss: float, ignore_index: int
    ) -> tuple[Tensor, Tensor]:
        ignored_N1 = (targets_N == ignore_index)[:, None]
        index_N1 = targets_N[:, None].masked_fill(ignored_N1, 0)
        log_p_NV = logits_NV.log_softmax(-1)
        log_z_N1 = logits_NV.gather(1, index_N1) - log_p_NV.gather(1, index_N1)
        log_z_N1.masked_fill_(ignored_N1, 0.0)
        cross_entropy = functional.nll_loss(
            log_p_NV, targets_N, ignore_index=ignore_index, reduction="sum"
        )
        ctx.z_loss = z_loss
        ctx.save_for_backward(log_p_NV, log_z_N1, index_N1, ignored_N1)
        ctx.mark_non_differentiable(cross_entropy)
        return cross_entropy + z_loss * log_z_N1.square().sum(), cross_entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        """Softmax times 1 + 2 * z_loss * log(Z), less 1 at the target."""
        log_p_NV, log_z_N1, index_N1, ignored_N1 = ctx.saved_tensors
        counted_N1 = grad * ~ignored_N1
        grad_NV = log_p_NV.exp().mul_(counted_N1 * (1 + 2 * ctx.z_loss * log_z_N1))
        return grad_NV.scatter_add_(1, index_N1, -counted_N1), None, None, None
