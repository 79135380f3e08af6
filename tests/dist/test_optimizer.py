"""Flat parameters, AdamW and the exact norm against torch, fp64 and known values."""

import math

import pytest
import torch
from torch import nn

from remesh.parallel.optim.adamw import AdamW, AdamWConfig
from remesh.parallel.optim.clip import clip_factor, exact_norm
from remesh.parallel.optim.flat import FlatParameters, plan_flat
from remesh.parallel.optim.lr import LrCurve, lr_at

SHAPES = {"a.weight": (3, 5), "norm.weight": (7,), "b.weight": (4, 4), "b.bias": (4,)}


def test_matrices_come_first_and_everything_starts_on_64_bytes():
    plan = plan_flat(SHAPES)
    assert list(plan.places) == ["a.weight", "b.weight", "norm.weight", "b.bias"]
    assert [place.start for place in plan.places.values()] == [0, 16, 32, 48]
    assert plan.num_decayed == 32
    assert plan.size == 64
    flat = torch.arange(64.0)
    assert plan.views(flat)["b.weight"][0, 0] == 16
    assert all(view.data_ptr() % 64 == flat.data_ptr() % 64 for view in plan.views(flat).values())


def test_backward_adds_to_the_flat_buffer_and_updates_reach_the_model():
    model = nn.Linear(3, 2)
    plan = plan_flat({name: tuple(p.shape) for name, p in model.named_parameters()})
    flat = FlatParameters(model, plan)
    flat.adopt()
    flat.values.fill_(2.0)
    gradient = torch.zeros(plan.size)
    flat.point_gradients(gradient)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
    assert torch.equal(plan.views(gradient)["weight"], torch.full((2, 3), 2.0))
    assert model.bias.tolist() == [2.0, 2.0]


def test_updates_equal_those_of_torch():
    torch.manual_seed(1)
    plan = plan_flat({"w": (40, 30), "n": (50,)})
    values = torch.randn(plan.size)
    mine = AdamW(AdamWConfig(weight_decay=0.1), plan.size, plan.num_decayed)
    peers = {name: nn.Parameter(view.clone()) for name, view in plan.views(values).items()}
    groups = [
        {"params": [peers["w"]], "weight_decay": 0.1},
        {"params": [peers["n"]], "weight_decay": 0.0},
    ]
    torchs = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    for step in range(1, 30):
        gradient = torch.randn(plan.size)
        lr = lr_at(LrCurve(peak=1e-2, warmup_steps=5), step)
        for group in groups:
            group["lr"] = lr
        for param_group in torchs.param_groups:
            param_group["lr"] = lr
        for name, view in plan.views(gradient).items():
            peers[name].grad = view.clone()
        torchs.step()
        mine.update(values, gradient, lr)
    for name, view in plan.views(values).items():
        torch.testing.assert_close(view, peers[name].data, rtol=2e-6, atol=2e-6)
    assert int(mine.num_updates) == 29


def test_decay_applies_to_matrices_only():
    plan = plan_flat(SHAPES)
    values = torch.ones(plan.size)
    AdamW(AdamWConfig(weight_decay=0.1), plan.size, plan.num_decayed).update(
        values, torch.zeros(plan.size), lr=1.0
    )
    views = plan.views(values)
    assert torch.equal(views["a.weight"], torch.full((3, 5), 0.9))
    assert torch.equal(views["b.weight"], torch.full((4, 4), 0.9))
    assert torch.equal(views["norm.weight"], torch.ones(7))
    assert torch.equal(views["b.bias"], torch.ones(4))


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e18])
def test_norm_equals_the_fp64_norm(scale):
    torch.manual_seed(2)
    gradient = torch.randn(64 * 1000) * torch.rand(64 * 1000).pow(8) * scale
    expected = torch.linalg.vector_norm(gradient.double()).item()
    assert exact_norm(gradient) == pytest.approx(expected, rel=1e-10)


def test_norm_does_not_depend_on_the_order_of_its_chunks():
    torch.manual_seed(3)
    chunks = torch.randn(999, 64) * torch.logspace(-8, 8, 999)[:, None]
    expected = exact_norm(chunks.flatten())
    for _ in range(5):
        assert exact_norm(chunks[torch.randperm(999)].flatten()) == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_makes_the_norm_infinite(bad):
    gradient = torch.ones(640)
    gradient[77] = bad
    assert exact_norm(gradient) == math.inf


def test_norms_at_the_edges():
    assert exact_norm(torch.zeros(128)) == 0
    assert exact_norm(torch.full((64,), 3e38)) == pytest.approx(8 * 3e38)
    tiny = torch.full((64,), 1e-45)
    assert exact_norm(tiny) == pytest.approx(8 * tiny[0].item())


def test_clipping_brings_the_norm_to_its_limit():
    assert clip_factor(math.sqrt(8), 1.0) == pytest.approx(0.353553, abs=1e-6)
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(0.0, 1.0) == 1.0
    assert clip_factor(5.0, 0.0) == 1.0
