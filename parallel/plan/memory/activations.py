"""Bytes of activations that wait for their backward, and of what is there in a moment only.

Shapes: N tokens of a microbatch, C width, F ffn width, V vocabulary.
Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4, here with what these kernels keep.
"""

from remesh.parallel.plan.memory.rank_sizes import MASTER_BYTES, RankSizes
from remesh.parallel.plan.shares import padded_rows

_ROUTER_BYTES = 16  # of a token and expert: logits, scores and shares of them, in fp32


def kept_bytes(sizes: RankSizes) -> int:
    """Activations that wait for their backward: of every pass that is under way."""
    if not sizes.in_flight:
        return 0
    every, num_layers = sizes.recompute_every, sizes.most_layers
    again = 0 if sizes.recompute == "none" else -(-num_layers // every)
    layer, input_only = _layer_bytes(sizes), sizes.num_tokens * _stream_bytes(sizes)
    if sizes.recompute == "full":
        return sizes.in_flight * ((num_layers - again) * layer + again * input_only)
    waiting = (num_layers - again) * layer + again * _layer_bytes(sizes, attention_again=True)
    return sizes.in_flight * waiting + _waiting_losses(sizes)


def passing_bytes(sizes: RankSizes) -> int:
    """Logits and their gradients, or what the backward of a layer holds, whichever is more, with
    the layer itself if it is computed again.

    Beside it what comes from one neighbour in a pipeline, or in a ring, and goes to the other.
    """
    crossing = 4 * sizes.num_tokens * _stream_bytes(sizes) if sizes.pipeline.ranks > 1 else 0
    losses = _loss_bytes(sizes) if sizes.has_head else 0
    again = _layer_bytes(sizes) if sizes.recompute == "full" and sizes.in_flight else 0
    return crossing + max(losses, again + _backward_bytes(sizes) + _ring_bytes(sizes))


def _ring_bytes(sizes: RankSizes) -> int:
    """Keys and values, own, used and arriving, and their gradients as well, which are wide."""
    if sizes.cp == 1:
        return 0
    kv_heads = max(1, sizes.model.num_kv_heads // sizes.tp)
    elements = 2 * sizes.num_tokens * kv_heads * sizes.model.head_width
    return 3 * elements * (sizes.compute_bytes + MASTER_BYTES)


def _waiting_losses(sizes: RankSizes) -> int:
    """Of all microbatches but one that are under way in the last stage, if several are: the
    softmax, or where backward comes in halves its gradient, until the weights have theirs.

    A rank that has the last stage among others has one microbatch under way there.
    """
    if not sizes.has_head or sizes.pipeline.chunks > 1:
        return 0
    rows = padded_rows(sizes.model.vocab_size, sizes.tp)
    return (sizes.in_flight - 1) * MASTER_BYTES * sizes.num_tokens * rows


def _stream_bytes(sizes: RankSizes) -> int:
    """Of a token in the residual stream on this rank."""
    shared = sizes.tp if sizes.sequence else 1
    return sizes.model.width * sizes.compute_bytes // shared


def _layer_bytes(sizes: RankSizes, *, attention_again: bool = False) -> int:
    """What one layer keeps: inputs of its linear maps, of its norms and of attention.

    Between two halves of a backward about as much waits: gradients in the place of what maps gave.
    """
    model, tp, size = sizes.model, sizes.tp, sizes.compute_bytes
    query = model.width // tp
    kv = max(1, model.num_kv_heads // tp) * model.head_width
    elements = query + 2 * kv + query + _ffn_elements(sizes)  # one product of three, and attention
    if not attention_again and (model.qk_norm or model.positions == "rope"):
        elements += query + kv  # once more: values hold the product
    kept = elements * size + 4 * model.num_heads // tp + _ROUTER_BYTES * model.num_experts
    if model.qk_norm and not attention_again:
        kept += MASTER_BYTES * (query + kv)
    return sizes.num_tokens * (kept + 2 * _norm_bytes(sizes) + _input_bytes(sizes))


def _ffn_elements(sizes: RankSizes) -> int:
    """Of a token, in the layer that keeps most: of experts also their inputs and what they say."""
    model, inner = sizes.model, 4 if sizes.model.activation == "swiglu" else 2
    dense = model.ffn_width // sizes.tp * inner
    if not model.num_experts:
        return dense
    expert = model.inner_width // sizes.tp * inner
    chosen = model.top_k * (expert + 2 * model.width)
    return max(dense if model.num_dense_layers else 0, chosen + model.num_shared_experts * expert)


def _norm_bytes(sizes: RankSizes) -> int:
    """Of a token: what a norm keeps, and its result, which linear maps keep."""
    shared = sizes.tp if sizes.sequence else 1
    inner = 4 if sizes.model.norm == "rms" else sizes.compute_bytes  # rms works in fp32
    return sizes.model.width * (inner + sizes.compute_bytes) // shared


def _input_bytes(sizes: RankSizes) -> int:
    """Of a token: a layer's input where its norm keeps what it has normed instead."""
    return _stream_bytes(sizes) if sizes.model.norm == "rms" else 0


def _loss_bytes(sizes: RankSizes) -> int:
    """Logits, their log-softmax and its gradient, all fp32; with tp one of them, used up."""
    rows = padded_rows(sizes.model.vocab_size, sizes.tp)
    copies = 3 if sizes.tp == 1 else 1
    narrow = 0 if sizes.compute_bytes == MASTER_BYTES else sizes.compute_bytes
    return sizes.num_tokens * (rows * (4 * copies + narrow) + _norm_bytes(sizes))


def _backward_bytes(sizes: RankSizes) -> int:
    """Gradients between the maps of a layer: of the feed-forward net, and of the stream.

    The gradient of what the last map got takes the place of that itself.
    """
    model, gates = sizes.model, 2 if sizes.model.activation == "swiglu" else 1
    ffn, streams = gates * model.ffn_width // sizes.tp, 2
    if model.num_experts:
        ffn = max(ffn, gates * model.top_k * model.inner_width // sizes.tp)
        streams += model.top_k
    return sizes.num_tokens * sizes.compute_bytes * (ffn + streams * model.width)
