"""Losses as sums over tokens.

The mean is taken once, over all tokens of the global batch. Averaging the means of microbatches or
of ranks instead gives a token more weight the fewer tokens share its microbatch.

Shapes: B sequences, T positions, V vocabulary, N = B * T tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

IGNORE_INDEX = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Sums over the tokens of a microbatch, in nats.

    `objective` is what to run backward: cross-entropy and z-loss. `cross_entropy` is for the
    record, without a graph.
    """

    objective: Tensor
    cross_entropy: Tensor
    num_tokens: int


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
    num_tokens = int(torch.count_nonzero(targets_N != ignore_index))
    cross_entropy = functional.cross_entropy(
        logits_NV, targets_N, ignore_index=ignore_index, reduction="sum"
    )
    objective = cross_entropy
    if z_loss:
        log_z_N = logits_NV.logsumexp(dim=-1).masked_fill(targets_N == ignore_index, 0.0)
        objective = cross_entropy + z_loss * log_z_N.square().sum()
    return Losses(objective=objective, cross_entropy=cross_entropy.detach(), num_tokens=num_tokens)


def widened(logits: Tensor) -> Tensor:
    """The logits in the type in which sums over a vocabulary are taken."""
    return logits if logits.dtype == torch.float64 else logits.float()
