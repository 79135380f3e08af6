import contextlib
import os
import signal
from dataclasses import replace

import pytest
import torch
from small_engine import spec, started, state_hash, work_of, zero
from taken_over import take_over
from whole_shards import decode_shard

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.plan.errors import GroupError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.spec import ZeroSpec
from remesh.parallel.state.reshard import ReshardError
from remesh.parallel.state.root_manifest import CheckpointRef
from remesh.parallel.state.shards import encode_fragments
from remesh.parallel.step.engine import Engine


def join_late(seat):
    """Rank 1 trains three steps alone; then all join it and train one more."""
    alone = Mesh.alone()
    engine = Engine(spec(4, 1))
    engine.form(alone)
    if seat.rank in (1, 2):
        engine.reset()
    if seat.rank == 1:
        for step in (1, 2, 3):
            engine.step(step, work_of(alone, step))
    mesh = seat.mesh()
    holding = engine.holding()
    engine.form(mesh)
    engine.share(holding, 3)
    joined = (engine.at_step, state_hash(engine))
    result = engine.step(4, work_of(mesh, 4))
    mesh.close()
    return joined, result, state_hash(engine)


def test_ranks_without_state_or_with_an_old_one_take_a_peers(pool):
    outcomes = pool.run(join_late, 4)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert outcomes[0][0][0] == 3


def receive_half(seat):
    mesh = seat.mesh()
    engine = started(mesh, spec(4, 1))
    engine.at_step = 5 if seat.rank < 2 else 4
    if seat.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(GroupError):
        engine.share(engine.holding(), 5)
    mesh.close()
    return engine.at_step


def test_a_rank_whose_source_dies_holds_no_state_and_one_that_had_it_keeps_it(pool):
    assert pool.start(receive_half, 3).results([1, 2]) == [5, None]


LAYOUTS = {
    "dp1": (Layout(), ZeroSpec()),
    "dp4": (Layout(dp=4), ZeroSpec()),
    "dp3": (Layout(dp=3), ZeroSpec()),
    "tp2 dp2": (Layout(dp=2, tp=2), ZeroSpec()),
    "tp4": (Layout(tp=4), ZeroSpec()),
    "zero3": (Layout(dp=4), zero(3)),
    "zero1": (Layout(dp=3), ZeroSpec(stage=1)),
    "hybrid": (Layout(dp=4), zero(2, group=2)),
    "tp2 zero3": (Layout(dp=2, tp=2), zero(3)),
}


def change_layouts(seat, names):
    """Two steps in each layout; ranks beyond its size sit it out and may come back."""
    torch.set_num_threads(1)
    engine, step, losses = None, 0, []
    for number, name in enumerate(names):
        layout, zero = LAYOUTS[name]
        fresh = Engine(spec(8, 1, zero=zero))
        holding = engine.holding() if engine else None
        if seat.rank < layout.world_size:
            part = replace(seat, size=layout.world_size)
            generation = seat.generation * 1000 + 10**9 + number
            mesh = part.mesh(layout, zero.shard_size(layout.dp), generation=generation)
            fresh.form(mesh)
            if step:
                fresh.share(holding, step, round_bytes=3000)
            else:
                fresh.reset()
            losses += [fresh.step(k, work_of(mesh, k)).loss for k in (step + 1, step + 2)]
            mesh.close()
        engine, step = fresh, step + 2
    return losses, pieces_of(engine)


def pieces_of(engine):
    if engine.at_step is None:
        return []
    return [(f.name, f.in_whole, f.global_shape, t.clone()) for f, t in engine.fragments()]


def put_together(outcomes):
    whole = {}
    for _, pieces in outcomes:
        for name, where, shape, part in pieces:
            whole.setdefault(name, torch.full(shape, torch.nan, dtype=torch.float64))[where] = part
    return whole


SEQUENCES = [
    ["dp4", "dp3"],
    ["zero3", "hybrid", "dp4"],
    ["zero1", "zero3", "hybrid"],
    ["dp3", "zero3"],
    ["zero1", "hybrid"],
]


@pytest.mark.parametrize("names", SEQUENCES)
def test_a_live_change_of_layout_keeps_the_bits_where_tp_stays(pool, names):
    outcomes = pool.run(change_layouts, 4, names)
    expected = pool.run(change_layouts, 1, ["dp1"] * len(names))
    assert outcomes[0][0] == expected[0][0]
    found, unbroken = put_together(outcomes), put_together(expected)
    assert found.keys() == unbroken.keys()
    for name, tensor in unbroken.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    "names", [["tp4", "dp4"], ["dp3", "tp2 zero3", "tp4"], ["tp2 dp2", "zero3"]]
)
def test_a_live_change_of_tp_keeps_the_curve(pool, names):
    outcomes = pool.run(change_layouts, 4, names)
    expected = pool.run(change_layouts, 1, ["dp1"] * len(names))
    assert outcomes[0][0] == pytest.approx(expected[0][0], rel=1e-5)
    found, unbroken = put_together(outcomes), put_together(expected)
    for name, tensor in unbroken.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


def lose_a_shard(seat):
    mesh = seat.mesh(Layout(dp=3), 3)
    engine = started(mesh, spec(4, 1, zero=ZeroSpec(stage=1)))
    if seat.rank == 1:
        engine.at_step = None
    holding = engine.holding()
    engine.form(mesh)
    try:
        engine.share(holding, 0)
    except ReshardError as error:
        text = str(error)
    mesh.close()
    return text, engine.at_step


def test_a_part_that_nobody_holds_is_named_and_all_keep_what_they_have(pool):
    outcomes = pool.run(lose_a_shard, 3)
    assert [at_step for _, at_step in outcomes] == [0, None, 0]
    assert all("nobody holds" in text for text, _ in outcomes)


def test_what_is_held_stays_until_another_state_is_adopted():
    """speed 6: what is read goes into memory of the state, and may turn out wrong."""
    engine = started(Mesh.alone(), spec(4, 1))
    held, before = engine.holding(), state_hash(engine)
    landing = engine.landing()
    for _, view in landing.fragments():
        view.fill_(7)
    assert (engine.at_step, state_hash(engine)) == (0, before)
    engine.put_back(held)
    assert state_hash(engine) == before
    engine.form(Mesh.alone())
    engine.adopt(landing, 5)
    assert engine.at_step == 5
    assert all(view.eq(7).all() for _, view in engine.fragments())
    mesh = Mesh.alone()
    engine.form(mesh)
    assert engine.step(6, work_of(mesh, 6))


def test_memory_that_somebody_may_still_write_to_is_given_up():
    engine = started(Mesh.alone(), spec(4, 1))
    engine.at_step = None
    landing = engine.landing()
    assert landing is engine.shard_state
    engine.put_back(None)
    engine.form(Mesh.alone())
    assert engine.shard_state is not landing


def test_a_state_survives_being_written_and_read():
    engine = started(Mesh.alone(), spec(4, 1))
    engine.shard_state.num_updates.fill_(7)
    engine.shard_state.shards[0].slots["exp_avg"].normal_()
    encoded = encode_fragments(engine.fragments(), CheckpointRef(step=9, generation=2))
    other = started(Mesh.alone(), spec(4, 1))
    tensors = decode_shard(encoded)[1]
    take_over(other, {part: tensors[part.name] for part, _ in other.fragments()}, 9)
    assert other.at_step == 9
    assert state_hash(other) == state_hash(engine)
