"""What one fp64 process computes that sees the whole batch at once, with torch alone."""

import functools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from small_engine import filler, spec, work_of

from remesh.parallel.model.router import RouterRates
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.optim.lr import lr_at
from remesh.parallel.spec import Precision

_NO_LOSSES = RouterRates()
FP64 = Precision(compute=torch.float64, gradient=torch.float64, master=torch.float64)
NUM_STEPS = 3  # the last one by moments of two
Z_LOSS = 1e-3
# By which a router chooses: one expert that every token goes to, one that none goes to.
SKEW = (9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -9.0)


def clip_of(norm):
    return min(1.0, 0.5 / norm)


def boxes(engine, prefix):
    names = {prefix + name for name in engine.shard_state.shapes}
    return [
        (fragment.name.removeprefix(prefix), fragment.in_whole, tensor.numpy().copy())
        for fragment, tensor in engine.fragments()
        if fragment.name in names
    ]


def trained(engine):
    """Results, the gradient of the first step and the parameters after the last, as boxes."""
    mesh = engine.assembly.mesh
    results = [engine.step(1, work_of(mesh, 1))]
    scale = clip_of(results[0].grad_norm) * (1 - engine.spec.optimizer.beta1)
    gradient = [(name, where, t / scale) for name, where, t in boxes(engine, "exp_avg.")]
    results += [engine.step(number, work_of(mesh, number)) for number in range(2, NUM_STEPS + 1)]
    return results, gradient, boxes(engine, "")


def skew(engine):
    for fragment, tensor in engine.shard_state.weights():
        if fragment.name.endswith(".balance.bias"):
            tensor.copy_(torch.tensor(SKEW)[fragment.in_whole])
    engine.loaded(0)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What one process computes with torch alone: `steps` are losses and gradient norms."""

    steps: list
    first_gradients: dict
    parameters: dict


@functools.cache
def expected_of(config, batch_size, router=_NO_LOSSES):
    """Cases that differ in how they share the work out share their oracle.

    Routers that are balanced are skewed, and their biases follow the loads.
    """
    model = Transformer(config, z_loss=Z_LOSS, router=router).double()
    model.reset(7)
    named = dict(model.named_parameters())
    biases = [p.data for name, p in named.items() if name.endswith(".balance.bias")]
    loads = torch.zeros(len(biases), config.num_experts, dtype=torch.int64)
    for bias in biases:
        bias.copy_(torch.tensor(SKEW))
    if biases:
        model.count_loads(loads)
    groups = [
        {"params": [p for p in named.values() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in named.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    steps, gradients = [], []
    for number in range(1, NUM_STEPS + 1):
        optimizer.zero_grad()
        loads.zero_()
        losses = losses_of(model, number, batch_size)
        losses.objective.backward()  # all that routers add to it is a sum over tokens too
        for parameter in named.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.div_(losses.num_tokens)
        gradients.append({name: p.grad.clone() for name, p in named.items()})
        norm = torch.nn.utils.get_total_norm([p.grad for p in named.values()]).item()
        steps.append(((losses.cross_entropy / losses.num_tokens).item(), norm))
        for parameter in named.values():
            parameter.grad.mul_(clip_of(norm))
        for group in optimizer.param_groups:
            group["lr"] = lr_at(spec().lr, number)
        optimizer.step()
        for bias, loads_E in zip(biases, loads, strict=True):
            assert loads_E[0] > losses.num_tokens / 2
            assert loads_E[-1] == 0
            bias.add_((loads_E.double().mean() - loads_E).sign(), alpha=router.balance)
    parameters = {name: p.detach() for name, p in named.items()}
    return Expected(steps=steps, first_gradients=gradients[0], parameters=parameters)


def losses_of(model, step, batch_size):
    batch = np.empty((batch_size, model.config.seq_len + 1), dtype=np.uint16)
    filler(step)(0, batch)
    tokens = torch.from_numpy(batch.astype(np.int64))
    x_BTC = model.embed(tokens[:, :-1])
    for layer in model.layers:
        x_BTC = layer(x_BTC)
    return model.loss(x_BTC, tokens[:, 1:])


def largest_error(parts, expected):
    """Of each tensor, relative to its largest value.

    Without positions in the keys, a bias of theirs has no effect: its gradient is 0 but for noise.
    """
    largest = {name: tensor.abs().max() for name, tensor in expected.items()}
    noise = 1e-5 * max(largest.values())
    return max(
        np.abs(array - expected[name][where].numpy()).max() / max(largest[name], noise).item()
        for name, where, array in parts
    )


def covered(outcomes, expected):
    """Whether the ranks' boxes hold every element of every tensor."""
    seen = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in expected.items()}
    for parts in outcomes:
        for name, where, _ in parts:
            seen[name][where] = True
    return all(mask.all() for mask in seen.values())


def assert_as_expected(outcomes, expected):
    """`outcomes` are of each rank its results, the first step's gradient, and the parameters."""
    for result, (loss, norm) in zip(outcomes[0][0], expected.steps, strict=True):
        assert result.applied
        assert result.loss == pytest.approx(loss, rel=1e-7, abs=1e-7)  # in units of 2^-24 nat
        assert math.isclose(result.grad_norm, norm, rel_tol=1e-10)
    for results, gradient, state in outcomes:
        assert results == outcomes[0][0]
        assert largest_error(gradient, expected.first_gradients) < 1e-10
        assert largest_error(state, expected.parameters) < 1e-9
    assert covered([state for *_, state in outcomes], expected.parameters)
