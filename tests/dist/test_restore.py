import contextlib
import signal
import time

import pytest
import torch
from small_engine import spec, started, state_hash, work_of

from remesh.parallel.engine import Engine
from remesh.parallel.errors import CheckpointError, GroupError
from remesh.parallel.mesh import Mesh
from remesh.parallel.restore import broadcast_state
from remesh.parallel.state.manifest import CheckpointRef
from remesh.parallel.state.shards import decode_shard, encode_shard


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
    engine.form(mesh)
    broadcast_state(engine, mesh.world, source=1, at_step=3)
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
        time.sleep(60)
    with contextlib.suppress(GroupError):
        broadcast_state(engine, mesh.world, source=0, at_step=5)
    mesh.close()
    return engine.at_step


def test_a_rank_whose_source_dies_holds_no_state_and_one_that_had_it_keeps_it(pool):
    run = pool.start(receive_half, 3)
    time.sleep(0.5)
    run.signal(0, signal.SIGKILL)
    assert run.results([1, 2]) == [5, None]


def altered(change):
    engine = started(Mesh.alone(), spec(4, 1))
    tensors = dict(engine.state())
    change(tensors)
    return engine, tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("exp_avg.head.weight"), "lacks tensor exp_avg.head.weight"),
        (lambda t: t.update(more=torch.zeros(1)), "has the unknown tensor more"),
        (lambda t: t.update({"head.weight": torch.zeros(2, 2)}), r"head.weight is .* \(2, 2\)"),
        (
            lambda t: t.update({"norm.weight": torch.zeros(48).half()}),
            "norm.weight is torch.float16",
        ),
    ],
)
def test_a_state_of_another_model_is_refused_before_anything_is_changed(change, message):
    engine, tensors = altered(change)
    before = state_hash(engine)
    with pytest.raises(CheckpointError, match=message):
        engine.load(tensors, 9)
    assert engine.at_step == 0
    assert state_hash(engine) == before


def test_a_state_survives_being_written_and_read():
    engine = started(Mesh.alone(), spec(4, 1))
    engine.optimizer.num_updates.fill_(7)
    engine.shard_state.shards[0].exp_avg.normal_()
    encoded = encode_shard(engine.state(), CheckpointRef(step=9, generation=2))
    other = started(Mesh.alone(), spec(4, 1))
    other.load(decode_shard(encoded)[1], 9)
    assert other.at_step == 9
    assert state_hash(other) == state_hash(engine)
