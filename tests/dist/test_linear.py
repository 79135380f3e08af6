"""Products that add a weight's gradient to where it belongs, against autograd."""

import pytest
import torch

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


def test_a_plain_parameter_gets_its_gradient_from_autograd():
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    weight.grad = torch.zeros(2, 3)
    assert weight_gradient(weight, torch.ones(4, 2), torch.ones(4, 3)).tolist() == [[4.0] * 3] * 2
    assert not weight.grad.any()
