"""Which experts a token goes to, how much each of them counts, and what keeps them evenly used.

Losses of a router are sums over tokens, as that of the model is, so that no cut of a batch changes
their strength. They join the graph where the weights leave the router, whose backward therefore
knows them wherever a model is cut and whatever is computed again: no layer has to hand a loss on.

Sources: Shazeer et al. 2017 (arXiv:1701.06538), 2.1, top-k; Fedus et al. 2021 (arXiv:2101.03961),
2.2, Lepikhin et al. 2020 (arXiv:2006.16668) and DeepSeek-AI 2024 (arXiv:2412.19437), 2.1.2, (17) to
(20), the auxiliary loss, here of each sequence; Zoph et al. 2022 (arXiv:2202.08906), (5), z-loss;
DeepSeek-AI 2024, (16), the bias.

Shapes: B sequences, T positions, E experts, K experts of a token.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from remesh.parallel.numerics.losses import widened
from remesh.parallel.plan.model_config import ModelConfig

_LEAST = 1e-20  # added to a sum of sigmoids, all of which may be 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRates:
    """Weights of the auxiliary loss and of the squared logarithm of the softmax's sum; by how much
    the bias of a balanced router follows the load of each expert, a step.
    """

    auxiliary: float = 0.0
    z_loss: float = 0.0
    balance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The experts of each token, the best one first, and what each counts."""

    chosen: Tensor
    weights: Tensor


def route(config: ModelConfig, logits_BTE: Tensor, bias_E: Tensor | None) -> tuple[Routing, Tensor]:
    """Where tokens go, and the scores of all experts. The bias has a say in the choice alone."""
    logits_BTE = widened(logits_BTE)
    softmax = config.score == "softmax"
    scores_BTE = logits_BTE.softmax(-1) if softmax else logits_BTE.sigmoid()
    judged_BTE = scores_BTE.detach()
    if bias_E is not None:
        judged_BTE = judged_BTE + bias_E.detach()
    chosen_BTK = judged_BTE.topk(config.top_k, dim=-1).indices
    weights_BTK = scores_BTE.gather(-1, chosen_BTK)
    if config.normed_scores:
        sums_BT1 = weights_BTK.sum(-1, keepdim=True)
        weights_BTK = weights_BTK / (sums_BT1 if softmax else sums_BT1 + _LEAST)
    return Routing(chosen=chosen_BTK, weights=weights_BTK), scores_BTE


def loads(chosen_BTK: Tensor, num_experts: int) -> Tensor:
    """How often each expert was chosen in each sequence: (B, E), whole numbers."""
    chosen_BN = chosen_BTK.flatten(1)
    counts_BE = chosen_BN.new_zeros(len(chosen_BN), num_experts)
    return counts_BE.scatter_add_(1, chosen_BN, torch.ones_like(chosen_BN))


def auxiliary_loss(scores_BTE: Tensor, loads_BE: Tensor) -> Tensor:
    """1 a token where all experts have the same load and score, up to E / K where few have all.

    Of each sequence, its tokens times the sum over experts of load and mean score, both as shares:
    E / (K * T) * load_i, and 1 / T * the sum of score_i / (sum of a token's scores). `loads_BE` are
    those of whole sequences, of which the scores may be a part.
    """
    num_experts = loads_BE.shape[-1]
    shares_BTE = scores_BTE / (scores_BTE.sum(-1, keepdim=True) + _LEAST)
    relative_BE = (loads_BE * num_experts).to(shares_BTE.dtype) / loads_BE.sum(-1, keepdim=True)
    return (relative_BE[:, None] * shares_BTE).sum()


def router_z_loss(logits_BTE: Tensor) -> Tensor:
    """The squared logarithm of the sum of exponentials, summed over tokens."""
    return widened(logits_BTE).logsumexp(-1).square().sum()


def with_loss(weights_BTK: Tensor, loss: Tensor, counted: "CountedLoads | None") -> Tensor:
    """The weights, whose backward is that of the loss too, and counts what was `counted`."""
    joined_BTK: Tensor = _WithLoss.apply(weights_BTK, loss, counted)  # type: ignore[no-untyped-call]
    return joined_BTK


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLoads:
    """Loads to be added to a tally: in backward, since a forward may be computed a second time."""

    tally: Tensor
    loads: Tensor


class _WithLoss(Function):
    @staticmethod
    def forward(
        ctx: Any, weights_BTK: Tensor, loss: Tensor, counted: CountedLoads | None
    ) -> Tensor:
        ctx.counted = counted
        ctx.like = loss
        return weights_BTK.view_as(weights_BTK)

    @staticmethod
    def backward(ctx: Any, gradient_BTK: Tensor) -> tuple[Tensor, Tensor, None]:
        if ctx.counted is not None:
            ctx.counted.tally.add_(ctx.counted.loads.sum(0))
        return gradient_BTK, torch.ones_like(ctx.like), None
