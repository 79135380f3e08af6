"""Every way of sharing a step out, against one fp64 process that sees the whole batch at once."""

import functools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from small_engine import filler, formed, spec, work_of, zero

from remesh.parallel.model.recompute import Recompute
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.optim.lr import lr_at
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import Precision, ZeroSpec

FP64 = Precision(compute=torch.float64, gradient=torch.float64, master=torch.float64)
NUM_STEPS = 5
Z_LOSS = 1e-3
SIZES = {
    "num_layers": 3,
    "width": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_width": 48,
    "vocab_size": 61,
    "seq_len": 20,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """`model`, `zero` and `recompute` are what differs from the defaults."""

    layout: Layout
    model: dict = field(default_factory=dict)
    zero: ZeroSpec = field(default_factory=ZeroSpec)
    recompute: Recompute = field(default_factory=Recompute)
    sequence: bool = False
    same_bits: bool = True
    num_leaves: int = 8
    microbatches_per_leaf: int = 1

    @property
    def spec(self):
        return spec(
            self.num_leaves,
            self.microbatches_per_leaf,
            model=ModelConfig(**{**SIZES, **self.model}),
            z_loss=Z_LOSS,
            precision=FP64,
            zero=self.zero,
            recompute=self.recompute,
            sequence=self.sequence,
            same_bits=self.same_bits,
        )


OTHER_MODEL = {
    "norm": "layer",
    "positions": "learned",
    "activation": "gelu",
    "bias": True,
    "tied": True,
}


CASES = {
    "dp3": Case(layout=Layout(dp=3)),
    "dp3 small buckets": Case(layout=Layout(dp=3), zero=zero(0)),
    "dp3 plain": Case(layout=Layout(dp=3), zero=zero(0), same_bits=False),
    "tp2": Case(layout=Layout(tp=2), num_leaves=2),
    "tp4": Case(layout=Layout(tp=4), num_leaves=2),
    "tp2 sp": Case(layout=Layout(tp=2), num_leaves=2, sequence=True),
    "tp4 sp": Case(layout=Layout(tp=4), num_leaves=2, sequence=True),
    "tp2 sp other model": Case(layout=Layout(tp=2), num_leaves=2, sequence=True, model=OTHER_MODEL),
    "tp4 sp qk-norm": Case(
        layout=Layout(tp=4), num_leaves=2, sequence=True, model={"qk_norm": True}
    ),
    **{f"zero{k}": Case(layout=Layout(dp=4), zero=zero(k)) for k in (1, 2, 3)},
    **{
        f"zero{k} plain": Case(layout=Layout(dp=3), zero=zero(k), same_bits=False)
        for k in (1, 2, 3)
    },
    "zero3 kept": Case(layout=Layout(dp=3), zero=zero(3, keep_gathered=True)),
    "zero3 one bucket": Case(layout=Layout(dp=2), zero=ZeroSpec(stage=3)),
    "zero3 tied": Case(layout=Layout(dp=3), zero=zero(3), model=OTHER_MODEL),
    **{f"hybrid 2x2 zero{k}": Case(layout=Layout(dp=4), zero=zero(k, group=2)) for k in (1, 2, 3)},
    "hybrid 2x2 plain": Case(layout=Layout(dp=4), zero=zero(3, group=2), same_bits=False),
    "tp2 zero3": Case(layout=Layout(dp=2, tp=2), num_leaves=4, zero=zero(3), sequence=True),
    "hybrid tp2": Case(
        layout=Layout(dp=4, tp=2), num_leaves=4, zero=zero(3, group=2), model={"tied": True}
    ),
    "tp2 zero1": Case(
        layout=Layout(dp=2, tp=2), num_leaves=4, zero=zero(1), model={"qk_norm": True}
    ),
    "uneven": Case(layout=Layout(dp=5), num_leaves=7, microbatches_per_leaf=2),
    "uneven zero3": Case(layout=Layout(dp=5), num_leaves=7, zero=zero(3), microbatches_per_leaf=2),
    "uneven plain": Case(layout=Layout(dp=5), num_leaves=7, zero=zero(2), same_bits=False),
    **{
        f"recompute {mode} zero3": Case(
            layout=Layout(dp=2), zero=zero(3), recompute=Recompute(mode=mode, every=every)
        )
        for mode, every in (("attention", 1), ("full", 1), ("full", 2))
    },
    "recompute tp2 sp": Case(
        layout=Layout(tp=2), num_leaves=2, sequence=True, recompute=Recompute(mode="full")
    ),
    **{
        f"{name} dp2 tp2": Case(layout=Layout(dp=2, tp=2), num_leaves=4, model={name: value})
        for name, value in (*OTHER_MODEL.items(), ("qk_norm", True), ("num_kv_heads", 4))
    },
}


def train(seat, name):
    """Losses, norms, the gradient of the first step and the state after the last, as boxes."""
    torch.set_num_threads(1)
    case = CASES[name]
    mesh, engine = formed(seat, case.layout, case.spec)
    results = [engine.step(1, work_of(mesh, 1))]
    first_moment = boxes(engine, "exp_avg.")
    results += [engine.step(step, work_of(mesh, step)) for step in range(2, NUM_STEPS + 1)]
    mesh.close()
    scale = clip_of(results[0].grad_norm) * (1 - engine.spec.optimizer.beta1)
    return results, [(n, b, t / scale) for n, b, t in first_moment], boxes(engine, "")


def clip_of(norm):
    return min(1.0, 0.5 / norm)


def boxes(engine, prefix):
    names = {prefix + name for name in engine.shard_state.shapes}
    return [
        (fragment.name.removeprefix(prefix), fragment.in_whole, tensor.numpy().copy())
        for fragment, tensor in engine.fragments()
        if fragment.name in names
    ]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What one process computes with torch alone: `steps` are losses and gradient norms."""

    steps: list
    first_gradients: dict
    parameters: dict


@functools.cache
def expected_of(config, batch_size):
    """Cases that differ in how they share the work out share their oracle."""
    model = Transformer(config, z_loss=Z_LOSS).double()
    model.reset(7)
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for p in named.values() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in named.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    steps, gradients = [], []
    for number in range(1, NUM_STEPS + 1):
        optimizer.zero_grad()
        losses = losses_of(model, number, batch_size)
        (losses.objective / losses.num_tokens).backward()
        gradients.append({name: p.grad.clone() for name, p in named.items()})
        norm = torch.nn.utils.get_total_norm([p.grad for p in named.values()]).item()
        steps.append(((losses.cross_entropy / losses.num_tokens).item(), norm))
        for parameter in named.values():
            parameter.grad.mul_(clip_of(norm))
        for group in optimizer.param_groups:
            group["lr"] = lr_at(spec().lr, number)
        optimizer.step()
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


@pytest.mark.parametrize("name", CASES)
def test_losses_gradients_norms_and_parameters_are_those_of_one_process(pool, name):
    case = CASES[name]
    outcomes = pool.run(train, case.layout.world_size, name)
    batch_size = 2 * case.num_leaves * case.microbatches_per_leaf
    expected = expected_of(case.spec.model, batch_size)
    for result, (loss, norm) in zip(outcomes[0][0], expected.steps, strict=True):
        assert result.applied
        assert result.loss == pytest.approx(loss, rel=1e-7, abs=1e-7)  # in units of 2^-24 nat
        assert math.isclose(result.grad_norm, norm, rel_tol=1e-10)
    for results, gradient, state in outcomes:
        assert results == outcomes[0][0]
        assert largest_error(gradient, expected.first_gradients) < 1e-10
        assert largest_error(state, expected.parameters) < 1e-9
    assert covered([state for *_, state in outcomes], expected.parameters)
