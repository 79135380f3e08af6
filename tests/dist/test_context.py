"""Attention in a ring: outputs, losses and gradients of rows whose tokens lie on several ranks."""

import pytest
import torch
from tensor_model import batch, config_of, full_values, losses_of, whole_model
from torch import nn

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
