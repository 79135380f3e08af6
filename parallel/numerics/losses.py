"""Losses as sums over tokens.

The mean is taken once, over all tokens of the global batch. Averaging the means of microbatches or
of ranks instead gives a token more weight the fewer tokens share its microbatch.
"""

import torch
from torch import Tensor
from torch.nn import functional

IGNORE_INDEX = -100


def summed_cross_entropy(
    logits_BTV: Tensor, targets_BT: Tensor, ignore_index: int = IGNORE_INDEX
) -> tuple[Tensor, int]:
    """Sum of the negative log-likelihoods in nats, fp32, and the number of tokens in it.

    Tokens whose target is `ignore_index` count nowhere; where all are, sum and gradients are 0.
    """
    loss_sum = functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(),
        targets_BT.flatten(),
        ignore_index=ignore_index,
        reduction="sum",
    )
    return loss_sum, int(torch.count_nonzero(targets_BT != ignore_index))
