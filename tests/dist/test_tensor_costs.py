"""What tensor and sequence parallelism keep for the backward pass, and what they send.

The layer is that of Korthikanti et al. 2022 (arXiv:2205.05198) without its dropouts: LayerNorm,
GELU, a feed-forward of four widths, in bf16. Their 10sbh in equation 2 are the inputs of two norms
(4sbh), the inputs of two regions (4sbh) and two dropout masks (2sbh), which are not here. Instead
of 5as/h for scores, fused attention keeps a number for each head and token.
"""

import pytest
import torch
from tensor_model import batch, config_of, formed, losses_of, saved_bytes, whole_model

LAYER = {
    "num_layers": 2,
    "width": 64,
    "num_heads": 8,
    "num_kv_heads": 8,
    "ffn_width": 256,
    "vocab_size": 64,
    "seq_len": 32,
    "norm": "layer",
    "positions": "learned",
    "activation": "gelu",
}
SEQUENCES = 2
SBH = 32 * SEQUENCES * 64
NORM_STATISTICS = 2 * 32 * SEQUENCES * 2  # mean and deviation of each token, in bf16
HEAD_STATISTICS = 8 * 32 * SEQUENCES * 4  # log-sum-exp of each head and token, in fp32


TENSOR = {"sequence": False}
SEQUENCE = {"sequence": True}
GATHERED = {"sequence": True, "keep_gathered": True}


def saved_by_layer(seat, how):
    """Bytes saved by a norm and by a layer, of the whole model if `how` is None."""
    config = config_of(**LAYER)
    if how is None:
        model, group = whole_model(config, torch.bfloat16), None
    else:
        group, _, model = formed(seat, config, dtype=torch.bfloat16, **how)
    tokens_BT, _ = batch(config, SEQUENCES)
    x_BTC = model.embed(tokens_BT).detach().requires_grad_()
    layer = model.layers[0]
    saved = saved_bytes(model, layer.ffn_norm, x_BTC), saved_bytes(model, layer, x_BTC)
    if group is not None:
        group.close()
    return saved


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallelism_keeps_the_inputs_of_norms_and_regions_whole(pool, tp):
    for of_norm, of_layer in pool.run(saved_by_layer, tp, TENSOR):
        assert of_norm == 2 * SBH + NORM_STATISTICS
        outside = 8 * SBH + 2 * NORM_STATISTICS
        assert of_layer == outside + (24 * SBH + HEAD_STATISTICS) // tp


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism_divides_everything(pool, tp):
    [(of_norm, of_layer)] = pool.run(saved_by_layer, 1, None)
    assert of_layer == 32 * SBH + 2 * NORM_STATISTICS + HEAD_STATISTICS
    for saved in pool.run(saved_by_layer, tp, SEQUENCE):
        assert saved == (of_norm // tp, of_layer // tp)


def test_gathered_inputs_are_kept_if_asked(pool):
    regathered = pool.run(saved_by_layer, 4, SEQUENCE)[0][1]
    assert pool.run(saved_by_layer, 4, GATHERED)[0][1] == regathered + 4 * SBH * 3 // 4


def sent_in_a_step(seat, how):
    config = config_of(**LAYER)
    group, _, model = formed(seat, config, dtype=torch.float32, **how)
    losses_of(model, *batch(config, SEQUENCES)).objective.backward()
    group.close()
    return group.bytes_sent


@pytest.mark.parametrize("tp", [2, 4])
def test_bytes_sent(pool, tp):
    """Sequence parallelism sends what tensor parallelism does, and what it gathers again."""
    tensor, kept, regathered = (
        pool.run(sent_in_a_step, tp, how) for how in (TENSOR, GATHERED, SEQUENCE)
    )
    activation, tokens = SBH * 4, 32 * SEQUENCES * 4
    # An all-reduce out of each region and one on the way back, for embedding and loss too; then
    # maximum, sum and target of each token.
    all_reduces = (4 * 2 + 2) * activation + 3 * tokens
    assert tensor == [2 * all_reduces * (tp - 1) // tp] * tp
    assert kept == tensor
    again = (2 * 2 + 1) * activation
    assert regathered == [(2 * all_reduces + again) * (tp - 1) // tp] * tp
