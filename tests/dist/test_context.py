"""Attention in a ring: outputs, losses and gradients of rows whose tokens lie on several ranks."""

import pytest
import torch
from tensor_model import batch, config_of, full_values, losses_of, whole_model
from torch import nn

from remesh.parallel.model.attention_core import (
    _gradients_written_out,
    _written_out,
    attended_block,
    block_gradients,
)
from remesh.parallel.model.maths import Whole
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.plan.layout import Layout
from remesh.parallel.techniques.context import ContextParallel

Z_LOSS = 0.01


def context_model(config, mesh, dtype=torch.float64):
    model = Transformer(config, ContextParallel(Whole(), mesh.ring), z_loss=Z_LOSS)
    model.install({name: nn.Parameter(v) for name, v in full_values(config, dtype).items()})
    return model


def packed(num_positions):
    """Rows of several texts: of one token, of one run and more, and one row that is one text."""
    cuts = {0: (1, 5, 6), 1: (3, 9), 2: ()}
    segments_BT = torch.zeros(3, num_positions, dtype=torch.int64)
    for row, starts in cuts.items():
        for start in starts:
            segments_BT[row, start:] += 1
    return segments_BT


def packed_losses(model, segments_BT, tokens_BT, targets_BT):
    x_BTC = model.embed(tokens_BT, segments_BT)
    for layer in model.layers:
        x_BTC = layer(x_BTC, segments_BT)
    return model.loss(x_BTC, targets_BT)


def outcome(model, is_packed):
    tokens_BT, targets_BT = batch(model.config)
    if is_packed:
        losses = packed_losses(model, packed(tokens_BT.shape[1]), tokens_BT, targets_BT)
    else:
        losses = losses_of(model, tokens_BT, targets_BT)
    losses.objective.backward()
    sums = torch.stack((losses.objective, losses.cross_entropy, losses.num_tokens.double()))
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return sums.detach().numpy(), {name: g.double().numpy() for name, g in gradients.items()}


def run_model(seat, options, is_packed):
    torch.set_num_threads(1)
    mesh = seat.mesh(Layout(cp=seat.size))
    found = outcome(context_model(config_of(**options), mesh), is_packed)
    mesh.close()
    return found


CASES = {
    "causal": ({}, False),
    "packed": ({}, True),
    "one kv head, normed": ({"num_kv_heads": 1, "qk_norm": True}, True),
    "all kv heads, learned positions": ({"num_kv_heads": 4, "positions": "learned"}, False),
    "learned positions that begin anew": ({"positions": "learned", "tied": True}, True),
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_add_up_to_those_of_one_process(pool, size, name):
    options, is_packed = CASES[name]
    expected_sums, expected = outcome(whole_model(config_of(**options)), is_packed)
    found = pool.run(run_model, size, options, is_packed)
    assert sum(sums for sums, _ in found) == pytest.approx(expected_sums, rel=1e-12)
    for parameter, gradient in expected.items():
        total = sum(gradients[parameter] for _, gradients in found)
        assert abs(total - gradient).max() < 1e-12 * abs(gradient).max() + 1e-12, parameter


@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_a_row_of_several_texts_is_as_each_of_them_in_a_row_of_its_own(positions):
    model = whole_model(config_of(positions=positions, qk_norm=True))
    tokens_BT, targets_BT = batch(model.config)
    segments_BT = packed(tokens_BT.shape[1])
    found = packed_losses(model, segments_BT, tokens_BT, targets_BT).objective.item()
    expected = 0.0
    for tokens_T, targets_T, segments_T in zip(tokens_BT, targets_BT, segments_BT, strict=True):
        for segment in segments_T.unique():
            own = segments_T == segment
            losses = losses_of(model, tokens_T[own][None], targets_T[own][None])
            expected += losses.objective.item()
    assert found == pytest.approx(expected, rel=1e-8)  # tables of angles are fp32


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", ["causal", "all", "some"])
def test_a_block_written_out_is_that_of_the_kernel(how, dtype):
    """As far as the type goes; `some` has queries that see nothing of it."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8), (2, 4, 6, 8)]
    q, k, v, gradient = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    seen = None
    if how == "some":
        seen = torch.rand((2, 6, 6), generator=generator) < 0.5
        seen[0, 3] = False
    causal, near = how == "causal", {"rtol": 1e-10, "atol": 1e-10}
    if dtype == torch.bfloat16:
        near = {"rtol": 0.05, "atol": 0.05}
    out, lse = attended_block(q, k, v, seen, causal=causal)
    plain, plain_lse = _written_out(q, k, v, seen, causal=causal)
    torch.testing.assert_close(plain, out, **near)
    torch.testing.assert_close(plain_lse.to(lse), lse, **near)
    if seen is not None:
        assert (lse[0, :, 3] == -torch.inf).all()
    whole = torch.logaddexp(lse, torch.zeros_like(lse))  # they have seen another block too
    saved = q, k, v, out, whole
    found = block_gradients(gradient, saved, seen, causal=causal)
    expected = _gradients_written_out(gradient, saved, seen, causal=causal)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(other, one, **near)
