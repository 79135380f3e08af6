"""A model in shares against the same model whole, in fp64."""

import pytest
from tensor_model import (
    batch,
    boxed,
    config_of,
    formed,
    losses_of,
    summed_gradients,
    whole_model,
)

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
