"""The transformer against a second one, written here in fp64 from the papers' formulas."""

import math

import pytest
import torch
from torch.nn.functional import log_softmax

from remesh.parallel.model.config import ModelConfig, parameter_shapes
from remesh.parallel.model.initial import draw, initial_value
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.numerics.losses import summed_cross_entropy

SIZES = {
    "num_layers": 2,
    "width": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_width": 48,
    "vocab_size": 61,
    "seq_len": 20,
}
CONFIG = ModelConfig(**SIZES)


def built(config=CONFIG, seed=7):
    model = Transformer(config)
    model.reset(seed)
    return model


def tokens(num_sequences=3, num_positions=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(CONFIG.vocab_size, (num_sequences, num_positions), generator=generator)


def normed(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + CONFIG.norm_eps).sqrt() * weight


def turned(x_TD):
    """RoPE as the complex product of its definition."""
    half = x_TD.shape[1] // 2
    rates = torch.tensor([CONFIG.rope_theta ** (-i / half) for i in range(half)]).double()
    angles = torch.arange(x_TD.shape[0]).double()[:, None] * rates
    z = torch.complex(x_TD[:, :half], x_TD[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((z.real, z.imag), dim=1)


def attended(x_TC, weights):
    q, k, v = (x_TC @ weights[f"attention.{part}.weight"].T for part in ("query", "key", "value"))
    heads, width = [], CONFIG.head_width
    for head in range(CONFIG.num_heads):
        kv_head = head * CONFIG.num_kv_heads // CONFIG.num_heads
        q_TD = turned(q[:, head * width : (head + 1) * width])
        k_TD = turned(k[:, kv_head * width : (kv_head + 1) * width])
        v_TD = v[:, kv_head * width : (kv_head + 1) * width]
        future = torch.ones(len(x_TC), len(x_TC)).triu(1).bool()
        scores = (q_TD @ k_TD.T / math.sqrt(width)).masked_fill(future, -torch.inf)
        heads.append(scores.softmax(-1) @ v_TD)
    return torch.cat(heads, dim=1) @ weights["attention.output.weight"].T


def fed_forward(x_TC, weights):
    gate, up = x_TC @ weights["ffn.gate.weight"].T, x_TC @ weights["ffn.up.weight"].T
    return (gate * torch.sigmoid(gate) * up) @ weights["ffn.down.weight"].T


def oracle_logits(weights, tokens_BT):
    sequences = []
    for tokens_T in tokens_BT:
        x_TC = weights["embedding.weight"][tokens_T]
        for layer in range(CONFIG.num_layers):
            prefix = f"layers.{layer}."
            own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
            x_TC = x_TC + attended(normed(x_TC, own["attention_norm.weight"]), own)
            x_TC = x_TC + fed_forward(normed(x_TC, own["ffn_norm.weight"]), own)
        sequences.append(normed(x_TC, weights["norm.weight"]) @ weights["head.weight"].T)
    return torch.stack(sequences)


def test_loss_and_gradients_equal_those_of_the_formulas():
    model, tokens_BT = built(), tokens()
    targets_BT = tokens(seed=1)
    weights = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in model.named_parameters()
    }
    expected = oracle_logits(weights, tokens_BT)
    expected_loss = -log_softmax(expected, -1).gather(-1, targets_BT[..., None]).sum()
    expected_loss.backward()
    logits_BTV = model(tokens_BT)
    losses = summed_cross_entropy(logits_BTV, targets_BT)
    losses.objective.backward()
    torch.testing.assert_close(logits_BTV.double(), expected, rtol=1e-5, atol=1e-6)
    assert losses.num_tokens == 60
    assert losses.cross_entropy.item() == pytest.approx(expected_loss.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        scale = weights[name].grad.abs().max().item()
        torch.testing.assert_close(
            parameter.grad.double(), weights[name].grad, rtol=1e-4, atol=1e-5 * scale, msg=name
        )


def test_the_promised_shapes_are_the_models():
    named = {name: tuple(p.shape) for name, p in built().named_parameters()}
    assert list(named.items()) == list(parameter_shapes(CONFIG).items())


def test_no_position_sees_a_later_one():
    model, tokens_BT = built(), tokens()
    changed_BT = tokens_BT.clone()
    changed_BT[:, 11] = (changed_BT[:, 11] + 1) % CONFIG.vocab_size
    before, after = model(tokens_BT), model(changed_BT)
    assert torch.equal(before[:, :11], after[:, :11])
    assert not torch.equal(before[:, 11], after[:, 11])


def test_shorter_sequences_give_the_same_logits():
    model, tokens_BT = built(), tokens()
    torch.testing.assert_close(model(tokens_BT)[:, :9], model(tokens_BT[:, :9]))


def test_two_passes_give_the_same_bits():
    gradients = []
    for _ in range(2):
        model = built()
        summed_cross_entropy(model(tokens()), tokens(seed=1)).objective.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_parameters_may_live_in_one_flat_buffer():
    model, reference = built(), built()
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    gradient = torch.zeros_like(flat)
    start = 0
    for p in model.parameters():
        p.data = flat[start : start + p.numel()].view(p.shape)
        p.grad = gradient[start : start + p.numel()].view(p.shape)
        start += p.numel()
    model.reset(7)
    for each in (model, reference):
        summed_cross_entropy(each(tokens()), tokens(seed=1)).objective.backward()
    assert torch.equal(flat, torch.cat([p.detach().flatten() for p in reference.parameters()]))
    assert torch.equal(gradient, torch.cat([p.grad.flatten() for p in reference.parameters()]))


def test_a_value_depends_on_seed_and_name_alone():
    torch.manual_seed(1)
    one = draw(5, "head.weight", (61, 32))
    torch.randn(3)
    state = torch.get_rng_state()
    assert torch.equal(one, draw(5, "head.weight", (61, 32)))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(one, draw(6, "head.weight", (61, 32)))
    assert not torch.equal(one, draw(5, "embedding.weight", (61, 32)))
    for name, parameter in built(seed=5).named_parameters():
        assert torch.equal(parameter, initial_value(CONFIG, 5, name, tuple(parameter.shape)))


def test_a_deeper_model_begins_with_the_same_layers():
    deeper = dict(built(ModelConfig(**{**SIZES, "num_layers": 3})).named_parameters())
    for name, parameter in built().named_parameters():
        if not name.endswith(("output.weight", "down.weight")):
            assert torch.equal(parameter, deeper[name]), name


def test_initial_scales():
    config = ModelConfig(**{**SIZES, "width": 256, "num_layers": 8})
    std = {
        name: initial_value(config, 0, name, shape).std().item()
        for name, shape in parameter_shapes(config).items()
        if len(shape) > 1
    }
    assert std["head.weight"] == pytest.approx(0.02, rel=0.03)
    assert std["layers.7.ffn.up.weight"] == pytest.approx(0.02, rel=0.03)
    assert std["layers.7.ffn.down.weight"] == pytest.approx(0.005, rel=0.03)
    assert std["layers.0.attention.output.weight"] == pytest.approx(0.005, rel=0.03)
    assert torch.equal(initial_value(config, 0, "norm.weight", (256,)), torch.ones(256))


def test_the_first_loss_is_that_of_a_guess():
    losses = summed_cross_entropy(built()(tokens()), tokens(seed=1))
    assert losses.objective.item() / losses.num_tokens == pytest.approx(math.log(61), abs=0.05)


def test_it_learns_a_sequence_by_heart():
    model, tokens_BT = built(), tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        losses = summed_cross_entropy(model(tokens_BT[:, :-1]), tokens_BT[:, 1:])
        (losses.objective / losses.num_tokens).backward()
        optimizer.step()
    assert losses.objective.item() / losses.num_tokens < 0.2
