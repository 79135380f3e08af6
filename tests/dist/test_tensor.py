"""A model in shares against the same model whole, in fp64."""

import pytest
import torch
from process_pool import FailedError
from tensor_model import (
    batch,
    boxed,
    config_of,
    formed,
    gathered,
    losses_of,
    summed_gradients,
    whole_model,
)

from remesh.parallel.model.maths import Linear
from remesh.parallel.techniques.tensor import TensorParallel

OPTIONS = {
    "plain": {},
    "layer norm": {"norm": "layer"},
    "learned positions": {"positions": "learned"},
    "gelu": {"activation": "gelu"},
    "biases": {"bias": True},
    "normed heads": {"qk_norm": True},
    "tied": {"tied": True},
    "the other half": {
        "norm": "layer",
        "positions": "learned",
        "activation": "gelu",
        "bias": True,
        "qk_norm": True,
        "tied": True,
    },
    "as many kv heads": {"num_kv_heads": 4},
    "one kv head": {"num_kv_heads": 1, "qk_norm": True, "bias": True},
    "experts": {"num_experts": 4, "expert_width": 24, "num_dense_layers": 1},
    "full experts": {"num_experts": 4, "top_k": 1, "num_shared_experts": 1, "capacity_factor": 1.0},
}
WAYS = [(2, False), (2, True), (4, False), (4, True)]


def errors(seat, options, sequence, num_positions=None):
    """Relative errors against the whole model: of the losses and of every gradient."""
    config = config_of(**options)
    data = batch(config, num_positions=num_positions)
    model = whole_model(config)
    expected = losses_of(model, *data)
    expected.objective.backward()
    group, shares, shared = formed(seat, config, sequence=sequence)
    found = losses_of(shared, *data)
    found.objective.backward()
    assert found.num_tokens == expected.num_tokens
    assert not found.cross_entropy.requires_grad
    off = {
        part: relative(getattr(found, part), getattr(expected, part))
        for part in ("objective", "cross_entropy")
    }
    # A key's bias shifts all scores of a query alike unless RoPE turns it: its gradient is 0.
    floor = 1e-6 * max(p.grad.abs().max().item() for p in model.parameters())
    for name, gradient in summed_gradients(group, shared, shares).items():
        wanted = model.get_parameter(name).grad
        off[name] = relative(
            gradient, boxed(wanted, shares[name]), wanted.abs().max().item(), floor
        )
    group.close()
    return off


def relative(found, expected, scale=None, floor=0.0):
    scale = max(floor, expected.abs().item() if scale is None else scale)
    difference = (found - expected).abs()
    return difference.max().item() / scale if difference.numel() else 0.0


@pytest.mark.parametrize(("tp", "sequence"), WAYS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_losses_and_gradients_are_those_of_the_whole_model(pool, options, tp, sequence):
    for rank, off in enumerate(pool.run(errors, tp, options, sequence)):
        wrong = {name: error for name, error in off.items() if not error < 1e-10}
        assert not wrong, rank


def test_shorter_sequences(pool):
    for off in pool.run(errors, 4, {"positions": "learned"}, True, 8):
        assert max(off.values()) < 1e-10


def test_a_length_that_the_ranks_cannot_share(pool):
    with pytest.raises(FailedError, match="7 positions cannot be dealt to 2 ranks; use a multiple"):
        pool.run(errors, 2, {}, True, 7)


def copies(seat, sequence):
    """By name: whether its gradients are parts, and whether all its holders have the same bits."""
    config = config_of(**OPTIONS["the other half"], num_heads=8, num_kv_heads=2)
    group, shares, model = formed(seat, config, sequence=sequence)
    losses_of(model, *batch(config)).objective.backward()
    found = {}
    for name, share in shares.items():
        everyones = gathered(group, model.get_parameter(name).grad)[list(share.holders)]
        found[name] = share.partial, all(torch.equal(one, everyones[0]) for one in everyones)
    group.close()
    return found


@pytest.mark.parametrize("sequence", [False, True])
def test_gradients_that_are_not_parts_are_equal_on_all_holders_and_parts_are_not(pool, sequence):
    for found in pool.run(copies, 4, sequence):
        assert all(partial != equal for partial, equal in found.values()), found
        assert found["layers.0.attention.key.weight"][0]  # a kv head for two ranks
        assert found["layers.0.attention.query_norm.weight"][0]
        for name in ("layers.1.ffn_norm.bias", "layers.0.attention.output.bias"):
            assert found[name][0] == sequence


def row_without_input(seat, sequence):
    group = seat.form()
    linear = Linear(8, 3, bias=True)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    maths = TensorParallel(group, sequence=sequence, vocab_size=7)
    out_BTC = maths.row(torch.ones(2, 4, 8), linear)
    out_BTC.sum().backward()
    group.close()
    return out_BTC.detach(), linear.bias.grad


@pytest.mark.parametrize("sequence", [False, True])
def test_a_rows_bias_is_added_once(pool, sequence):
    for out_BTC, grad_C in pool.run(row_without_input, 4, sequence):
        length = 1 if sequence else 4
        assert torch.equal(out_BTC, torch.tensor([1.0, 2.0, 3.0]).expand(2, length, 3))
        assert grad_C.tolist() == [2.0 * length] * 3


def gradients_by_recompute(seat, sequence):
    """Whether the gradients are the same without and with recompute of the attention."""
    config = config_of(**OPTIONS["normed heads"], bias=True)
    group, shares, model = formed(seat, config, sequence=sequence)
    found = []
    for recompute in (False, True):
        for layer in model.layers:
            layer.attention.recompute = recompute
        losses_of(model, *batch(config)).objective.backward()
        found.append([model.get_parameter(name).grad for name in shares])
        model.zero_grad()
    group.close()
    return all(map(torch.equal, *found))


@pytest.mark.parametrize("sequence", [False, True])
def test_recompute_leaves_the_bits_alone(pool, sequence):
    assert pool.run(gradients_by_recompute, 2, sequence) == [True] * 2
