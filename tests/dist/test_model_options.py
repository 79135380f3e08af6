"""Every kind of model against the formulas in fp64, whole, in shares, and with recompute."""

import pytest
import torch
from formulas import IGNORED, objective

from remesh.parallel.model.router import RouterRates
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.numerics.losses import summed_cross_entropy
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes

SIZES = {
    "num_layers": 2,
    "width": 24,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_width": 40,
    "vocab_size": 31,
    "seq_len": 12,
}
GPT = {"norm": "layer", "positions": "learned", "activation": "gelu", "bias": True, "tied": True}
EXPERTS = {"num_experts": 4, "expert_width": 20}
KINDS = {
    "default": {},
    "layer norm": {"norm": "layer"},
    "learned positions": {"positions": "learned"},
    "gelu": {"activation": "gelu"},
    "bias": {"bias": True},
    "qk-norm": {"qk_norm": True},
    "tied": {"tied": True},
    "one kv head": {"num_kv_heads": 1},
    "gpt": {**GPT, "num_kv_heads": 4},
    "all but rope": {**GPT, "qk_norm": True},
    "experts": EXPERTS,
    "experts of one choice": {**EXPERTS, "top_k": 1, "normed_scores": False},
    "experts and dense layers": {**GPT, **EXPERTS, "num_dense_layers": 1, "num_shared_experts": 2},
    "balanced experts": {
        **EXPERTS,
        "num_experts": 5,
        "top_k": 3,
        "num_shared_experts": 1,
        "score": "sigmoid",
        "balanced": True,
    },
    "full experts": {**EXPERTS, "capacity_factor": 1.0},
    "rope with all": {**GPT, "positions": "rope", "qk_norm": True, "activation": "swiglu"},
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors this small are computed slower by two."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


every_kind = pytest.mark.parametrize("kind", KINDS)


def built(kind, *, dtype=torch.float64, **losses):
    """A model away from its first values, where biases are 0 and norm weights 1."""
    model = Transformer(ModelConfig(**{**SIZES, **KINDS[kind]}), **losses)
    model.reset(7)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.to(dtype)


def batch(num_positions=12):
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(SIZES["vocab_size"], (2, num_positions + 1), generator=generator)
    targets_BT = tokens[:, 1:].clone()
    targets_BT[1, 3:6] = IGNORED
    return tokens[:, :-1], targets_BT


def in_blocks(model, tokens_BT, targets_BT):
    x_BTC = model.embed(tokens_BT)
    for layer in model.layers:
        x_BTC = layer(x_BTC)
    return model.loss(x_BTC, targets_BT)


def gradients(model, run=in_blocks):
    losses = run(model, *batch())
    losses.objective.backward()
    return losses, gradients_of(model)


def gradients_of(model):
    """That of a bias which follows the loads of experts is 0."""
    named = model.named_parameters()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named}


def assert_bits(ones, others):
    assert ones.keys() == others.keys()
    for name, one in ones.items():
        assert torch.equal(one, others[name]), name


def deviation(one, other):
    """Largest difference, relative to the largest value.

    The gradient of a key's bias is 0 without RoPE and qk-norm: it adds the same to all scores.
    """
    return (one - other).abs().max().item() / max(1e-5, other.abs().max().item())


@every_kind
@pytest.mark.parametrize("num_positions", [12, 7])
def test_loss_and_every_gradient_equal_those_of_the_formulas(kind, num_positions):
    router = RouterRates(auxiliary=0.3, z_loss=0.02)
    model = built(kind, z_loss=0.01, router=router)
    tokens_BT, targets_BT = batch(num_positions)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    example = model.config, weights, tokens_BT, targets_BT, 0.01
    objective(*example, (router.auxiliary, router.z_loss))[0].backward()
    expected, cross_entropy = objective(*example)
    losses = in_blocks(model, tokens_BT, targets_BT)
    losses.objective.backward()
    assert losses.num_tokens == 2 * num_positions - 3
    assert losses.objective.item() == pytest.approx(expected.item(), rel=1e-13)
    assert losses.cross_entropy.item() == pytest.approx(cross_entropy.item(), rel=1e-13)
    for name, gradient in gradients_of(model).items():
        wanted = weights[name].grad
        wanted = torch.zeros_like(gradient) if wanted is None else wanted
        assert deviation(gradient, wanted) < 1e-10, name


@every_kind
def test_the_promised_shapes_are_the_models(kind):
    model = built(kind)
    named = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert list(named.items()) == list(parameter_shapes(model.config).items())


@every_kind
def test_blocks_have_the_bits_of_the_whole(kind):
    def whole(model, tokens_BT, targets_BT):
        return summed_cross_entropy(model(tokens_BT), targets_BT)

    losses, expected = gradients(built(kind, dtype=torch.float32), whole)
    in_parts, seen = gradients(built(kind, dtype=torch.float32))
    assert torch.equal(losses.objective, in_parts.objective)
    assert_bits(seen, expected)


@pytest.mark.parametrize("kind", ["default", "gpt", "rope with all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recompute_of_attention_has_the_same_bits(kind, dtype):
    model, recomputing = built(kind, dtype=dtype), built(kind, dtype=dtype)
    for layer in recomputing.layers:
        layer.attention.recompute = True
    losses, expected = gradients(model)
    again, seen = gradients(recomputing)
    assert torch.equal(losses.objective, again.objective)
    assert_bits(seen, expected)


def by_hand(model, tokens_BT, targets_BT):
    """Backward block by block, each of which is run again from its input."""
    blocks = [lambda _: model.embed(tokens_BT), *model.layers]
    inputs = [torch.zeros(())]
    for block in blocks:
        with torch.no_grad():
            inputs.append(block(inputs[-1]))
    last = inputs.pop().requires_grad_()
    losses = model.loss(last, targets_BT)
    losses.objective.backward()
    gradient = last.grad
    for block, x in reversed(list(zip(blocks, inputs, strict=True))):
        x.requires_grad_()
        block(x).backward(gradient)
        gradient = x.grad
    return losses


@pytest.mark.parametrize("kind", ["default", "gpt", "rope with all", "balanced experts"])
@pytest.mark.parametrize("attention", [False, True])
def test_blocks_run_again_from_their_inputs_have_the_same_bits(kind, attention):
    losses, expected = gradients(built(kind, dtype=torch.float32))
    model = built(kind, dtype=torch.float32)
    model.layers[1].attention.recompute = attention
    again = by_hand(model, *batch())
    assert torch.equal(losses.objective, again.objective)
    assert_bits(gradients_of(model), expected)


def kept_bytes(layer, x_BTC):
    """Bytes that backward needs of a layer, besides its parameters and input."""
    kept = {}
    own = {p.untyped_storage().data_ptr() for p in (*layer.parameters(), *layer.buffers(), x_BTC)}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out_BTC = layer(x_BTC)
    assert out_BTC.requires_grad
    return sum(num_bytes for num_bytes, _ in kept.values())


def test_recompute_of_attention_keeps_the_projections_alone():
    layer = built("default", dtype=torch.float32).layers[0]
    x_BTC = torch.randn(2, 12, 24, generator=torch.Generator().manual_seed(0), requires_grad=True)
    whole = kept_bytes(layer, x_BTC)
    layer.attention.recompute = True
    # Turned queries and keys; per head and position the logarithm of the softmax's sum. The
    # projections stay: those of the values have been there before.
    turned, log_sums, projected = 2 * 12 * (24 + 12) * 4, 2 * 12 * 4 * 4, 2 * 12 * (24 + 12) * 4
    assert whole - kept_bytes(layer, x_BTC) == turned + log_sums - projected


def test_a_tied_gradient_is_the_sum_of_both():
    _, expected = gradients(built("tied"))
    apart = built("tied")
    head = torch.nn.Parameter(apart.embedding.weight.detach().clone())
    apart.install({"embedding.weight": apart.embedding.weight, "head.weight": head})
    _, seen = gradients(apart)
    torch.testing.assert_close(
        seen.pop("embedding.weight") + seen.pop("head.weight"), expected.pop("embedding.weight")
    )
    assert_bits(seen, expected)


def test_an_installed_embedding_is_the_head_of_a_tied_model():
    model = built("tied")
    embedding = torch.nn.Parameter(torch.ones(31, 24))
    model.install({"embedding.weight": embedding})
    assert model.head.weight is embedding
    assert model.embedding.weight is embedding


@every_kind
def test_a_model_without_storage_works_once_its_parameters_are_installed(kind):
    model = built(kind)
    with torch.device("meta"):
        other = Transformer(model.config)
    other.install({n: torch.nn.Parameter(p.detach()) for n, p in model.named_parameters()})
    _, expected = gradients(model)
    _, seen = gradients(other)
    assert_bits(seen, expected)


def test_only_the_models_own_names_can_be_installed():
    with pytest.raises(AttributeError, match="bias"):
        built("default").install({"norm.bias": torch.nn.Parameter(torch.ones(24))})


def share_of(model, rank, num_ranks):
    """This rank's heads of layer 0; of kv heads at least one, which ranks may have in common."""
    attention, width = model.layers[0].attention, model.config.head_width
    num_rows = model.config.width // num_ranks
    kv_rows = max(width, model.config.kv_width // num_ranks)
    kv_first = rank * model.config.num_kv_heads // num_ranks * width
    own = slice(rank * num_rows, (rank + 1) * num_rows)
    own_kv = slice(kv_first, kv_first + kv_rows)
    return {
        "layers.0.attention.query.weight": attention.query.weight[own],
        "layers.0.attention.key.weight": attention.key.weight[own_kv],
        "layers.0.attention.value.weight": attention.value.weight[own_kv],
        "layers.0.attention.output.weight": attention.output.weight[:, own],
    }


@pytest.mark.parametrize("kind", ["default", "qk-norm", "one kv head"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_shares_of_the_heads_add_up_to_all_of_them(kind, num_ranks):
    model = built(kind)
    x_BTC = torch.randn(2, 12, 24, generator=torch.Generator().manual_seed(0)).double()
    total = torch.zeros_like(x_BTC)
    for rank in range(num_ranks):
        part = built(kind)
        shares = share_of(part, rank, num_ranks)
        part.install({n: torch.nn.Parameter(s.detach().clone()) for n, s in shares.items()})
        total += part.layers[0].attention(x_BTC)
    torch.testing.assert_close(total, model.layers[0].attention(x_BTC), rtol=1e-12, atol=1e-12)


@every_kind
def test_a_model_in_bf16_comes_near_the_exact_one(kind):
    exact, _ = gradients(built(kind))
    rounded, seen = gradients(built(kind, dtype=torch.bfloat16))
    assert rounded.objective.dtype == torch.float32
    assert {gradient.dtype for gradient in seen.values()} == {torch.bfloat16}
    assert rounded.objective.item() == pytest.approx(exact.objective.item(), rel=1e-2)
