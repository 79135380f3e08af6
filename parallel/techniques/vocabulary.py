"""Embedding and cross-entropy over a vocabulary of which each rank holds some rows.

The logits are never gathered: the ranks agree on the maximum, then on the sum of exponentials and
the target's logit in one message, two numbers a token. Their gradient needs no message at all.

Shapes: B sequences, T positions, C width, V rows that this rank has room for, N = B * T tokens.
Source: Shoeybi et al. 2019 (arXiv:1909.08053), 3.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.group import Group
from remesh.parallel.numerics.losses import IGNORE_INDEX, Losses, widened


def lookup(tokens_BT: Tensor, weight_VC: Tensor, rows: range) -> tuple[Tensor, Tensor]:
    """The tokens' rows where this rank holds them, else 0; and where they stand, V if elsewhere."""
    index_BT, outside_BT = _placed(tokens_BT, rows)
    part_BTC = functional.embedding(index_BT, weight_VC).masked_fill_(outside_BT[..., None], 0.0)
    return part_BTC, index_BT.masked_fill_(outside_BT, len(weight_VC))


def lookup_gradient(grad_BTC: Tensor, index_BT: Tensor, num_rows: int) -> Tensor:
    """The gradient of the V = `num_rows` rows, from the places that `lookup` gave."""
    # Tokens held elsewhere point behind the last row: to one that is padding and is cut off.
    grad_VC: Tensor = torch.ops.aten.embedding_dense_backward(
        grad_BTC, index_BT, num_rows + 1, num_rows, scale_grad_by_freq=False
    )[:num_rows]
    return grad_VC


def cross_entropy_(
    group: Group, logits_BTV: Tensor, targets_BT: Tensor, rows: range, z_loss: float
) -> Losses:
    """What `summed_cross_entropy` gives for the whole vocabulary, the same bits on every rank.

    Uses fp32 and fp64 logits up, so that the largest tensor of a step exists once; narrower ones
    are widened into a second tensor.
    """
    arguments = group, logits_BTV, targets_BT, rows, z_loss
    objective, cross_entropy = _CrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    num_tokens = torch.count_nonzero(targets_BT != IGNORE_INDEX)
    return Losses(objective=objective, cross_entropy=cross_entropy, num_tokens=num_tokens)


class _CrossEntropy(Function):
    @staticmethod
    def forward(
        ctx: Any, group: Group, logits_BTV: Tensor, targets_BT: Tensor, rows: range, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        logits_NV = widened(logits_BTV.detach().flatten(0, 1))
        targets_N = targets_BT.flatten()
        logits_NV[:, len(rows) :] = -torch.inf
        index_N, outside_N = _placed(targets_N, rows)
        highest_N = logits_NV.amax(-1)
        all_reduce_(group, highest_N, "max")
        logits_NV -= highest_N[:, None]
        of_target_N = logits_NV.gather(-1, index_N[:, None])[:, 0].masked_fill_(outside_N, 0.0)
        exponentials_NV = logits_NV.exp_()
        sums_2N = torch.stack((exponentials_NV.sum(-1), of_target_N))
        all_reduce_(group, sums_2N)

        ignored_N = targets_N == IGNORE_INDEX
        log_sum_N = sums_2N[0].log()
        cross_entropy = (log_sum_N - sums_2N[1]).masked_fill_(ignored_N, 0.0).sum()
        log_z_N = (log_sum_N + highest_N).masked_fill_(ignored_N, 0.0)
        objective = cross_entropy + z_loss * log_z_N.square().sum()
        factor_N = ((2 * z_loss * log_z_N + 1) / sums_2N[0]).masked_fill_(ignored_N, 0.0)
        ctx.like = logits_BTV.shape, logits_BTV.dtype
        ctx.save_for_backward(exponentials_NV, factor_N, index_N, outside_N | ignored_N)
        ctx.mark_non_differentiable(cross_entropy)
        return objective, cross_entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[None, Tensor, None, None, None]:
        exponentials_NV, factor_N, index_N, elsewhere_N = ctx.saved_tensors
        shape, dtype = ctx.like
        grad_NV = exponentials_NV.mul_((factor_N * grad)[:, None])
        at_target_N = (-grad).expand_as(factor_N).masked_fill(elsewhere_N, 0.0)
        grad_NV.scatter_add_(-1, index_N[:, None], at_target_N[:, None])
        return None, grad_NV.to(dtype).view(shape), None, None, None


def _placed(tokens: Tensor, rows: range) -> tuple[Tensor, Tensor]:
    """Each token's row on this rank, 0 for those outside of it, and which those are."""
    index = tokens - rows.start
    outside = (index < 0) | (index >= len(rows))
    return index.masked_fill_(outside, 0), outside
