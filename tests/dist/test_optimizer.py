"""Flat parameters, AdamW and the exact norm against torch, fp64 and known values."""

import math
from dataclasses import replace

import pytest
import torch
from small_engine import started
from torch import nn

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.clip import (
    cell_of,
    chunk_sums,
    clip_factor,
    in_range,
    square_sum,
    units_of,
)
from remesh.parallel.optim.lr import LrCurve, lr_at
from remesh.parallel.optim.optimizer import MasterShard, Rates, StateMemory
from remesh.parallel.plan.buckets import plan_flat

CPU = StateMemory(device=torch.device("cpu"))
SHAPES = {"a.weight": (3, 5), "norm.weight": (7,), "b.weight": (4, 4), "b.bias": (4,)}


def zeros(size, num_decayed):
    return MasterShard.zeros(size, num_decayed, AdamW.slots, torch.float32, CPU)


def shard_of(plan, values=None):
    shard = zeros(plan.size, plan.num_decayed)
    return shard if values is None else replace(shard, values=values)


def views(plan, flat):
    return {n: flat[p.start : p.stop].view(p.shape) for n, p in plan.places.items()}


def exact_norm(gradient):
    """The 2-norm of a flat gradient; inf if an element is not finite."""
    sums = chunk_sums(gradient)
    if not in_range(cell_of(sums)):
        sums = chunk_sums(gradient, wide=True)
    cell = cell_of(sums)
    units = units_of(sums, cell, len(sums)) if math.isfinite(sums.max()) else 0
    return square_sum(units, cell, len(sums)).root


def test_updates_equal_those_of_torch():
    torch.manual_seed(1)
    plan = plan_flat({"w": (40, 30), "n": (50,)})
    values = torch.randn(plan.size)
    mine, shard = AdamW(weight_decay=0.1), shard_of(plan, values)
    peers = {name: nn.Parameter(view.clone()) for name, view in views(plan, values).items()}
    groups = [
        {"params": [peers["w"]], "weight_decay": 0.1},
        {"params": [peers["n"]], "weight_decay": 0.0},
    ]
    torchs = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    for step in range(1, 30):
        gradient = torch.randn(plan.size)
        lr = lr_at(LrCurve(peak=1e-2, warmup_steps=5), step)
        for group in torchs.param_groups:
            group["lr"] = lr
        for name, view in views(plan, gradient).items():
            peers[name].grad = view.clone() * 0.5
        torchs.step()
        mine.update([shard], [gradient], step, Rates(lr=lr, factor=0.5))
    for name, view in views(plan, values).items():
        torch.testing.assert_close(view, peers[name].data, rtol=2e-6, atol=2e-6)


def test_updates_have_the_same_bits_wherever_a_buffer_is_cut():
    torch.manual_seed(4)
    values, gradients = torch.randn(64 * 97), [torch.randn(64 * 97) for _ in range(3)]
    results = []
    for cut in (64 * 97, 64 * 3, 64 * 50):
        parts = [part.clone() for part in values.split(cut)]
        shards = [
            replace(zeros(len(part), min(max(64 * 20 - cut * number, 0), len(part))), values=part)
            for number, part in enumerate(parts)
        ]
        optimizer = AdamW()
        for count, gradient in enumerate(gradients, start=1):
            own = [g.clone() for g in gradient.split(cut)]
            optimizer.update(shards, own, count, Rates(lr=1e-2, factor=0.3))
        results.append(torch.cat(parts))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_decay_applies_to_matrices_only():
    plan = plan_flat(SHAPES)
    shard = shard_of(plan, torch.ones(plan.size))
    optimizer = AdamW(weight_decay=0.1)
    optimizer.update([shard], [torch.zeros(plan.size)], 1, Rates(lr=1.0))
    decayed = views(plan, shard.values)
    assert torch.equal(decayed["a.weight"], torch.full((3, 5), 0.9))
    assert torch.equal(decayed["b.weight"], torch.full((4, 4), 0.9))
    assert torch.equal(decayed["norm.weight"], torch.ones(7))
    assert torch.equal(decayed["b.bias"], torch.ones(4))


def test_a_gradient_of_half_the_width_moves_weights_of_full_width():
    shard = zeros(64, 64)
    gradient = torch.ones(64, dtype=torch.bfloat16)
    AdamW().update([shard], [gradient], 1, Rates(lr=1e-3))
    torch.testing.assert_close(shard.values, torch.full((64,), -1e-3))


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e18])
def test_norm_equals_the_fp64_norm(scale):
    torch.manual_seed(2)
    gradient = torch.randn(64 * 1000) * torch.rand(64 * 1000).pow(8) * scale
    expected = torch.linalg.vector_norm(gradient.double()).item()
    assert exact_norm(gradient) == pytest.approx(expected, rel=1e-7)
    assert exact_norm(gradient.double()) == pytest.approx(expected, rel=1e-12)


def test_a_chunk_has_the_same_sum_wherever_it_lies_and_whoever_is_beside_it():
    torch.manual_seed(5)
    chunks = torch.randn(300, 64) * torch.logspace(-12, 16, 300)[:, None]
    sums, wide = chunk_sums(chunks.flatten()), chunk_sums(chunks.flatten(), wide=True)
    torch.testing.assert_close(sums, wide, rtol=1e-6, atol=0.0)
    assert torch.equal(wide, chunks.double().square().sum(1))
    for start, stop in ((0, 1), (1, 3), (7, 300), (130, 147), (299, 300)):
        room = torch.zeros(64 * (stop - start) + 16)[16:]
        room.copy_(chunks[start:stop].flatten())
        assert torch.equal(chunk_sums(room), sums[start:stop])


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


@pytest.mark.parametrize("element", [1e-25, 1e25])
def test_the_norm_of_a_step_is_right_where_fp32_has_no_room_for_squares(element):
    engine = started(Mesh.alone())
    gradients = [torch.full_like(one.values, element) for one in engine.shard_state.shards]
    norm = engine.assembly.norm
    own = norm.measure(gradients)
    count = sum(len(one) for one in gradients)
    assert norm.total(own, own.cell, own.units).root == pytest.approx(
        element * math.sqrt(count), rel=1e-6
    )
