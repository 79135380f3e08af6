"""What ranks of a ring keep for the backward pass and what they send, against the formulas."""

import pytest
import torch
from small_engine import MODEL, formed, spec, started, work_of
from tensor_model import config_of, full_values, saved_bytes, whole_model
from torch import nn

from remesh.parallel.model.maths import Whole
from remesh.parallel.model.recompute import Recompute
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.plan.layout import Layout
from remesh.parallel.techniques.context import ContextParallel

SEQUENCES, LENGTH = 2, 32
LAYER = {
    "num_layers": 1,
    "width": 64,
    "num_heads": 8,
    "num_kv_heads": 4,
    "ffn_width": 256,
    "seq_len": LENGTH,
    "positions": "learned",
}
NUM_STEPS = 8


def context_model(config, ring, dtype):
    model = Transformer(config, ContextParallel(Whole(), ring))
    model.install({name: nn.Parameter(v) for name, v in full_values(config, dtype).items()})
    return model


def pass_a_layer(seat, dtype):
    """Bytes that are kept by a layer, and sent by its forward and by its backward."""
    mesh = seat.mesh(Layout(cp=seat.size))
    model = context_model(config_of(**LAYER), mesh.ring, dtype)
    x_BtC = torch.randn(SEQUENCES, LENGTH // seat.size, 64, dtype=dtype, requires_grad=True)
    outs = []
    kept = saved_bytes(model, lambda x: outs.append(model.layers[0](x)) or outs[0], x_BtC)
    forward = mesh.bytes_sent
    outs[0].sum().backward()
    sent = forward, mesh.bytes_sent - forward
    mesh.close()
    return kept, sent


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 4])
def test_activations_divide_by_the_ranks_and_the_ring_sends_what_the_formula_says(
    pool, size, dtype
):
    """Keys and values go round twice, and their gradients, wide ones, once; one hop less each."""
    whole = whole_model(config_of(**LAYER), dtype)
    x_BTC = torch.randn(SEQUENCES, LENGTH, 64, dtype=dtype, requires_grad=True)
    kept_alone = saved_bytes(whole, whole.layers[0], x_BTC)
    pair = 2 * SEQUENCES * LENGTH // size * 32 * dtype.itemsize
    wide = pair * 4 // dtype.itemsize
    for kept, sent in pool.run(pass_a_layer, size, dtype):
        assert kept * size == kept_alone
        assert sent == ((size - 1) * pair, (size - 1) * (pair + wide))


def ring_bytes(seat, recompute):
    """Of a step of an engine."""
    mesh, engine = formed(seat, Layout(cp=seat.size), spec(2, 2, recompute=recompute))
    engine.step(1, work_of(mesh, 1))
    sent = mesh.ring.pipe.out.bytes_sent
    mesh.close()
    return sent


@pytest.mark.parametrize("mode", ["none", "attention", "full"])
def test_a_step_sends_so_much_for_each_layer_and_microbatch(pool, mode):
    """What is computed again goes round again."""
    passes = 2 * 2 * MODEL.num_layers
    pair = 2 * 2 * MODEL.seq_len // 2 * MODEL.kv_width * 4
    rounds = 3 if mode == "none" else 4
    assert set(pool.run(ring_bytes, 2, Recompute(mode=mode))) == {passes * rounds * pair}


def train_through(seat, layouts):
    """Losses of some steps in each of these meshes, with the state handed on, and a last hash."""
    torch.set_num_threads(1)
    engine, holding, losses = None, None, []
    each = NUM_STEPS // len(layouts)
    for number, layout in enumerate(layouts):
        generation = seat.generation * 1000 + 10**9 + number
        mesh = seat.mesh(layout, generation=generation)
        before, engine = engine, started(mesh)
        if before is not None:
            holding = before.holding()
            engine.share(holding, number * each)
        steps = range(number * each + 1, (number + 1) * each + 1)
        losses += [engine.step(step, work_of(mesh, step)).loss for step in steps]
        mesh.close()
    return losses, [tensor.double().sum().item() for _, tensor in engine.fragments()]


def test_a_degree_that_changes_and_comes_back_trains_the_same_curve(pool):
    stays, changes = [Layout(dp=2, cp=2)], [Layout(dp=2, cp=2), Layout(dp=4)] * 2
    expected = pool.run(train_through, 4, stays)[0][0]
    found = pool.run(train_through, 4, changes)
    assert found[0][0] != expected
    assert found[0][0] == pytest.approx(expected, rel=0, abs=1e-6)
    assert pool.run(train_through, 4, changes) == found
