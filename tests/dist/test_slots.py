"""An optimizer is one file: what it declares is held, shared out, saved and given to others."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from small_engine import MODEL, spec, started, work_of
from whole_shards import decode_shard

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.shard_state import whole_state
from remesh.parallel.holding.written_part import own_part
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.slots import SlotSpec, slot_and_parameter
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import parameter_shapes
from remesh.parallel.spec import ZeroSpec
from remesh.parallel.state.root_manifest import CheckpointRef
from remesh.parallel.state.shards import encode_fragments


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """Descent with momentum, kept in half the width; and a slot of its signs' sums."""

    slots: ClassVar = (
        SlotSpec(name="momentum", dtype="bfloat16"),
        SlotSpec(name="signs"),
    )

    def update(self, shards, gradients, count, rates):
        for shard, gradient in zip(shards, gradients, strict=True):
            momentum, signs = shard.slots["momentum"], shard.slots["signs"]
            momentum.mul_(0.9).add_(gradient, alpha=rates.factor)
            signs.add_(gradient.sign(), alpha=count)
            shard.values.sub_(momentum, alpha=rates.lr)


def sums_of(engine):
    return [
        (str(fragment), tensor.double().sum().item()) for fragment, tensor in engine.fragments()
    ]


def momentum_spec(zero):
    return spec(6, 1, optimizer=Momentum(), zero=zero)


def train(seat, layout, zero, first):
    """Two steps in one mesh, the state carried over to another one, and one step more."""
    torch.set_num_threads(1)
    chosen = momentum_spec(first)
    mesh = seat.mesh(layout, first.shard_size(layout.dp))
    engine = started(mesh, chosen)
    losses = [engine.step(step, work_of(mesh, step)).loss for step in (1, 2)]
    mesh.close()
    generation = seat.generation + 10**9
    mesh = seat.mesh(layout, zero.shard_size(layout.dp), generation=generation)
    other, holding = started(mesh, momentum_spec(zero)), engine.holding()
    other.share(holding, 2)
    losses.append(other.step(3, work_of(mesh, 3)).loss)
    encoded = encode_fragments(
        own_part(other.shard_state, mesh), CheckpointRef(step=3, generation=1)
    )
    mesh.close()
    return losses, other.fragments(), bytes(encoded), other.held_bytes()


def put_together(outcomes):
    found = {}
    for _, fragments, _, _ in outcomes:
        for fragment, tensor in fragments:
            dtype = getattr(torch, fragment.dtype)
            assert tensor.dtype == dtype
            whole = found.setdefault(fragment.name, torch.zeros(fragment.global_shape, dtype=dtype))
            whole[fragment.in_whole] = tensor
    return found


@pytest.mark.parametrize("stages", [(0, 1), (1, 3), (3, 2)])
def test_slots_of_any_optimizer_are_trained_shared_out_and_carried_over(pool, stages):
    zeros = [ZeroSpec(stage=stage, bucket_bytes=1 << 14) for stage in stages]
    alone = pool.run(train, 1, Layout(), ZeroSpec(), ZeroSpec())
    expected = put_together(alone)
    outcomes = pool.run(train, 3, Layout(dp=3), zeros[1], zeros[0])
    found = put_together(outcomes)
    assert all(losses == alone[0][0] for losses, *_ in outcomes)
    shapes = parameter_shapes(MODEL)
    assert found.keys() == {one.name for one in whole_state(shapes, Momentum.slots)}
    assert {name: found[name].dtype for name in ("momentum.norm.weight", "signs.norm.weight")} == {
        "momentum.norm.weight": torch.bfloat16,
        "signs.norm.weight": torch.float32,
    }
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
        assert tensor.any(), name
    for _, _, _, held in outcomes:
        assert held["slots"] == held["master"] * 3 // 2


def test_they_are_written_once_like_the_weights(pool):
    outcomes = pool.run(train, 3, Layout(dp=3), ZeroSpec(stage=1, bucket_bytes=1 << 14), ZeroSpec())
    expected, written = put_together(outcomes), {}
    for _, _, encoded, _ in outcomes:
        for box, tensor in decode_shard(encoded)[1].items():
            name = box.partition("[")[0]
            written[name] = written.get(name, 0) + tensor.numel()
    assert written == {name: tensor.numel() for name, tensor in expected.items()}


def test_a_reset_forgets_what_was_remembered():
    engine = started(mesh := Mesh.alone(), momentum_spec(ZeroSpec()))
    fresh = sums_of(engine)
    engine.step(1, work_of(mesh, 1))
    assert sums_of(engine) != fresh
    engine.reset()
    assert sums_of(engine) == fresh


def test_a_tensors_name_tells_its_slot():
    assert slot_and_parameter("layers.0.ffn.up.weight") == ("", "layers.0.ffn.up.weight")
    for slot in AdamW.slots:
        assert slot_and_parameter(slot.tensor("norm.weight")) == (slot.name, "norm.weight")


def test_the_state_of_adamw_has_the_names_that_its_files_always_had():
    engine = started(Mesh.alone())
    names = [fragment.name for fragment, _ in engine.fragments()]
    parameters = list(parameter_shapes(MODEL))
    firsts = ["", "exp_avg.", "exp_avg_sq."]
    assert sorted(names) == sorted(
        [first + name for first in firsts for name in parameters] + ["num_updates"]
    )
