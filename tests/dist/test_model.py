"""The default model: in fp32 against the formulas, its first values, and that it learns."""

import math
import random

import pytest
import torch
from counted import calls_made
from formulas import objective

from remesh.parallel.model.initial import InitialValues, draw, initial_value
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.numerics.losses import summed_cross_entropy
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.state.fragments import Fragment

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


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors this small are computed slower by two."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def built(config=CONFIG, seed=7):
    model = Transformer(config)
    model.reset(seed)
    return model


def tokens(num_sequences=3, num_positions=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(CONFIG.vocab_size, (num_sequences, num_positions), generator=generator)


def test_in_fp32_loss_and_gradients_are_near_those_of_the_formulas():
    model, tokens_BT = built(), tokens()
    targets_BT = tokens(seed=1)
    weights = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in model.named_parameters()
    }
    expected, _ = objective(CONFIG, weights, tokens_BT, targets_BT)
    expected.backward()
    losses = summed_cross_entropy(model(tokens_BT), targets_BT)
    losses.objective.backward()
    assert losses.num_tokens == 60
    assert losses.cross_entropy.item() == pytest.approx(expected.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        scale = weights[name].grad.abs().max().item()
        torch.testing.assert_close(
            parameter.grad.double(), weights[name].grad, rtol=1e-4, atol=1e-5 * scale, msg=name
        )


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


@pytest.mark.parametrize("shape", [(3000, 1500), (5, 900, 700), (40, 50), (3, 4)])
def test_a_box_is_drawn_as_it_is_in_the_whole_tensor(shape):
    """parallel A10: also where the tensor has many blocks."""
    values, rng = InitialValues(CONFIG, 5), random.Random(1)
    for name in ("layers.0.ffn.up.weight", "layers.1.ffn.down.weight"):
        whole_one = initial_value(CONFIG, 5, name, shape)
        for _ in range(4):
            spans = [sorted(rng.sample(range(size + 1), 2)) for size in shape]
            box = Fragment(
                name=name,
                global_shape=shape,
                offsets=tuple(start for start, _ in spans),
                sizes=tuple(stop - start for start, stop in spans),
                dtype="float32",
            )
            found = torch.empty(box.sizes)
            values.fill(found, box)
            assert torch.equal(found, whole_one[box.in_whole])
    assert whole_one.std().item() == pytest.approx(0.02 / (2 * CONFIG.num_layers) ** 0.5, rel=0.4)


def test_blocks_of_one_tensor_are_not_alike():
    first, second = initial_value(CONFIG, 5, "head.weight", (2048, 1024)).split(1024)
    assert not torch.equal(first, second)


def test_a_rank_draws_the_blocks_that_it_holds_something_of():
    """parallel A10: it drew every tensor of which it held a sliver, whole."""
    shape = (16 * 1024, 1024)  # of 16 blocks
    box = Fragment(
        name="head.weight", global_shape=shape, offsets=(700, 0), sizes=(600, 1024), dtype="float32"
    )
    values, out = InitialValues(CONFIG, 5), torch.empty(box.sizes)
    assert calls_made(values.fill, out, box)["_key"] == 2
    again = box.part((1300, 0), (600, 1024))
    assert calls_made(values.fill, out, again)["_key"] == 0  # it is in the block that is there


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


def test_norms_begin_at_one_biases_at_zero_and_positions_like_matrices():
    config = ModelConfig(**SIZES, norm="layer", positions="learned", bias=True, qk_norm=True)
    for name, shape in parameter_shapes(config).items():
        value = initial_value(config, 0, name, shape)
        if name.endswith("norm.weight"):
            assert torch.equal(value, torch.ones(shape)), name
        elif name.endswith(".bias"):
            assert torch.equal(value, torch.zeros(shape)), name
        else:
            assert value.abs().max() > 0, name
    positions = initial_value(config, 0, "positions.weight", (400, 32))
    assert positions.std().item() == pytest.approx(0.02, rel=0.03)


def test_a_tied_model_begins_with_the_embedding_of_an_untied_one():
    tied = dict(built(ModelConfig(**SIZES, tied=True)).named_parameters())
    untied = dict(built().named_parameters())
    assert untied.keys() - tied.keys() == {"head.weight"}
    assert all(torch.equal(value, untied[name]) for name, value in tied.items())


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
