"""Products that add a weight's gradient to where it belongs, against autograd."""

from dataclasses import replace

import pytest
import torch
from small_engine import MODEL, spec, started
from torch.utils._python_dispatch import TorchDispatchMode

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.model.linear import InPlaceGradient, Linear, weight_gradient

NUM_OUT, NUM_IN = 640, 512


def made(kind, *, bias):
    torch.manual_seed(0)
    linear = Linear(NUM_IN, NUM_OUT, bias=bias).double()
    torch.nn.init.normal_(linear.weight)
    linear.weight = kind(linear.weight.data)
    if bias:
        torch.nn.init.normal_(linear.bias)
    return linear


def gradients(linear, *, room):
    """After two passes, with and without room for the weight's gradient before."""
    torch.manual_seed(1)
    linear.weight.grad = torch.zeros_like(linear.weight) if room else None
    of_inputs = []
    for _ in range(2):
        x_BTC = torch.randn(2, 3, NUM_IN, dtype=torch.float64, requires_grad=True)
        linear(x_BTC).square().sum().backward()
        of_inputs.append(x_BTC.grad)
    return [*of_inputs, *(p.grad for p in linear.parameters())]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("room", [False, True])
def test_gradients_are_those_of_autograd(bias, room):
    expected = gradients(made(torch.nn.Parameter, bias=bias), room=room)
    found = gradients(made(InPlaceGradient, bias=bias), room=room)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-12 * other.abs().max()


def test_a_gradient_stays_in_the_memory_that_was_given_to_it():
    linear = made(InPlaceGradient, bias=False)
    flat = torch.zeros(NUM_OUT * NUM_IN, dtype=torch.float64)
    linear.weight.grad = flat.view(NUM_OUT, NUM_IN)
    linear(torch.ones(1, 1, NUM_IN, dtype=torch.float64)).sum().backward()
    assert torch.equal(flat, torch.ones_like(flat))


def test_what_is_in_a_blank_gradient_is_written_over_once_and_then_added_to():
    linear = made(InPlaceGradient, bias=False)
    linear.weight.grad = torch.full_like(linear.weight.data, torch.nan)
    linear.weight.blank = True
    for expected in (1.0, 2.0):
        linear(torch.ones(1, 1, NUM_IN, dtype=torch.float64)).sum().backward()
        assert torch.equal(linear.weight.grad, torch.full_like(linear.weight.data, expected))


def test_a_plain_parameter_gets_its_gradient_from_autograd():
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    weight.grad = torch.zeros(2, 3)
    assert weight_gradient(weight, torch.ones(4, 2), torch.ones(4, 3)).tolist() == [[4.0] * 3] * 2
    assert not weight.grad.any()


class Products(TorchDispatchMode):
    """How many products of matrices there were."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.name().partition(".")[0] in ("aten::mm", "aten::addmm")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("bias", "kv_heads"), [(False, 2), (False, 4), (True, 4)])
def test_maps_of_one_input_are_one_product_with_the_parameters_of_each(bias, kv_heads):
    config = replace(MODEL, bias=bias, width=64, ffn_width=128, num_kv_heads=kv_heads)
    engine = started(Mesh.alone(), spec(1, 1, model=config))
    model = engine.assembly.model
    tokens = torch.zeros(1, config.seq_len, dtype=torch.int64)
    with torch.no_grad(), Products() as seen:
        engine.assembly.stages[0].forward(tokens, tokens)
    assert seen.count == 4 * config.num_layers + 1
    assert any(one.name == "layers.0.attention.key.weight" for one, _ in engine.fragments())
    attention = model.layers[0].attention
    [joined] = attention.query.joined
    rows = torch.cat([one.weight for one in (attention.query, attention.key, attention.value)])
    assert torch.equal(joined.weight, rows)


def test_maps_whose_parameters_are_no_neighbours_stay_apart():
    """9 rows of 10 elements end before the next multiple of 64."""
    config = replace(MODEL, width=10, num_heads=1, num_kv_heads=1, ffn_width=9)
    engine = started(Mesh.alone(), spec(1, 1, model=config))
    assert not engine.assembly.model.layers[0].ffn.gate.joined
