"""The attention core: what queries make of keys and values, whole or block of keys by block.

A block's result comes with its log-sum-exp, the logarithm of what its softmax was divided by: that
alone is needed to join the results of several blocks, and to compute the gradients of a block when
all is known that its queries have seen. On the CPU both directions of a block are one kernel that
keeps no scores; elsewhere they are written out, and there is room for a block's scores.

Whom a query sees follows from two things: order, in which it sees itself and what is before it, and
segments, of which it sees its own. A row may hold several texts, each of them a segment.

Shapes: B sequences, Q queries, T keys, H query heads, K kv heads, G query heads of each kv head,
D head width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def attended(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, segments_BT: Tensor | None) -> Tensor:
    """Of all tokens of a row, in their order."""
    grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
    if segments_BT is None:
        return functional.scaled_dot_product_attention(
            q_BHTD, k_BKTD, v_BKTD, is_causal=True, enable_gqa=grouped
        )
    seen_BQT = same_segment(segments_BT, segments_BT).tril()
    return functional.scaled_dot_product_attention(
        q_BHTD, k_BKTD, v_BKTD, attn_mask=seen_BQT[:, None], enable_gqa=grouped
    )


def same_segment(of_queries_BQ: Tensor, of_keys_BT: Tensor) -> Tensor:
    """Which keys are of a query's segment, by their order alone or not."""
    return of_queries_BQ[:, :, None] == of_keys_BT[:, None, :]


def positions_in_segments(segments_BT: Tensor) -> Tensor:
    """Of each token, how far it is from the first one of its run of equal segments."""
    positions_T = torch.arange(segments_BT.shape[1], device=segments_BT.device)
    begins_BT = functional.pad(segments_BT[:, 1:] != segments_BT[:, :-1], (1, 0), value=True)
    return positions_T - (positions_T * begins_BT).cummax(1).values


def attended_block(
    q_BHQD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, seen_BQT: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """The result of this block of keys and its log-sum-exp (B, H, Q), -inf where none is seen.

    `causal` takes as many keys as queries, and no `seen_BQT`.
    """
    if not _is_fused(q_BHQD):
        return _written_out(q_BHQD, k_BKTD, v_BKTD, seen_BQT, causal=causal)
    mask_BHQT = None if seen_BQT is None else _bias(seen_BQT, q_BHQD.dtype)[:, None]
    out_BHQD, lse_BHQ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        q_BHQD, k_BKTD, v_BKTD, 0.0, causal, attn_mask=mask_BHQT
    )
    if seen_BQT is not None:  # the kernel says 0 of those that see nothing
        lse_BHQ = lse_BHQ.masked_fill(~seen_BQT.any(-1)[:, None], -torch.inf)
    return out_BHQD, lse_BHQ


def block_gradients(
    gradient_BHQD: Tensor,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    seen_BQT: Tensor | None,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of queries, and of the keys and values of a block; `gradient_BHQD` is that of the result.

    `saved` are queries, keys, values, and result and log-sum-exp of all that the queries see.
    Source: Dao 2023 (arXiv:2307.08691), algorithm 2.
    """
    if not _is_fused(saved[0]):
        return _gradients_written_out(gradient_BHQD, saved, seen_BQT, causal=causal)
    mask_BHQT = None if seen_BQT is None else _bias(seen_BQT, saved[0].dtype)[:, None]
    of_q, of_k, of_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(  # noqa: SLF001
        gradient_BHQD, *saved, 0.0, causal, attn_mask=mask_BHQT
    )
    return of_q, of_k, of_v


def _is_fused(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """The kernels take a mask as what is added to scores, in the type of the queries."""
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)


def _scores(
    q_BHQD: Tensor, k_BKTD: Tensor, seen_BQT: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Queries by kv head, scaled, and the scores of a block, both wide."""
    wide = torch.promote_types(q_BHQD.dtype, torch.float32)
    scale = 1 / math.sqrt(q_BHQD.shape[-1])
    q_BKGQD = _by_kv_head(q_BHQD.to(wide) * scale, k_BKTD)
    scores_BKGQT = q_BKGQD @ k_BKTD.to(wide)[:, :, None].mT
    if causal:
        later_QT = torch.ones(scores_BKGQT.shape[-2:], dtype=torch.bool, device=q_BHQD.device)
        scores_BKGQT.masked_fill_(later_QT.triu(1), -torch.inf)
    if seen_BQT is not None:
        scores_BKGQT.masked_fill_(~seen_BQT[:, None, None], -torch.inf)
    return q_BKGQD, scores_BKGQT


def _written_out(
    q_BHQD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, seen_BQT: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    _, scores_BKGQT = _scores(q_BHQD, k_BKTD, seen_BQT, causal=causal)
    lse_BKGQ = scores_BKGQT.logsumexp(-1)
    sees_none_BKGQ = lse_BKGQ == -torch.inf
    weights_BKGQT = (scores_BKGQT - lse_BKGQ.masked_fill(sees_none_BKGQ, 0.0)[..., None]).exp_()
    out_BKGQD = weights_BKGQT @ v_BKTD.to(weights_BKGQT.dtype)[:, :, None]
    return out_BKGQD.flatten(1, 2).to(q_BHQD.dtype), lse_BKGQ.flatten(1, 2)


def _gradients_written_out(
    gradient_BHQD: Tensor,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    seen_BQT: Tensor | None,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    q_BHQD, k_BKTD, v_BKTD, out_BHQD, lse_BHQ = saved
    q_BKGQD, scores_BKGQT = _scores(q_BHQD, k_BKTD, seen_BQT, causal=causal)
    wide = scores_BKGQT.dtype
    weights_BKGQT = (scores_BKGQT - _by_kv_head(lse_BHQ.to(wide), k_BKTD)[..., None]).exp_()
    gradient_BKGQD = _by_kv_head(gradient_BHQD.to(wide), k_BKTD)
    out_BKGQD = _by_kv_head(out_BHQD.to(wide), k_BKTD)
    along_BKGQ1 = (gradient_BKGQD * out_BKGQD).sum(-1, keepdim=True)
    of_v_BKTD = (weights_BKGQT.mT @ gradient_BKGQD).sum(2)
    of_weights_BKGQT = gradient_BKGQD @ v_BKTD.to(wide)[:, :, None].mT
    of_scores_BKGQT = weights_BKGQT * (of_weights_BKGQT - along_BKGQ1)
    of_k_BKTD = (of_scores_BKGQT.mT @ q_BKGQD).sum(2)
    of_q_BKGQD = of_scores_BKGQT @ k_BKTD.to(wide)[:, :, None] / math.sqrt(q_BHQD.shape[-1])
    dtype = q_BHQD.dtype
    return of_q_BKGQD.flatten(1, 2).to(dtype), of_k_BKTD.to(dtype), of_v_BKTD.to(dtype)


def _by_kv_head(of_heads: Tensor, k_BKTD: Tensor) -> Tensor:
    """The same with the dimension of heads as K and G."""
    num_kv_heads = k_BKTD.shape[1]
    return of_heads.reshape(len(of_heads), num_kv_heads, -1, *of_heads.shape[2:])
