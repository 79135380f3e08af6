"""The whole step, model included, has the same bits at every number of ranks."""

import pytest
import torch
from small_engine import MODEL, spec, started, state_hash, work_of

from remesh.data.digest import StepDigest
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.step_result import RankPhase
from remesh.parallel.spec import ZeroSpec
from remesh.parallel.step.engine import Engine


def train(seat, num_leaves, num_steps):
    torch.set_num_threads(1)
    mesh = seat.mesh()
    engine = started(mesh, spec(num_leaves, 24 // num_leaves))
    results = [engine.step(k, work_of(mesh, k)) for k in range(1, num_steps + 1)]
    mesh.close()
    return results, state_hash(engine)


@pytest.mark.parametrize("num_leaves", [12, 8])
def test_losses_norms_and_state_are_the_same_bits_at_every_dp(pool, num_leaves):
    [expected] = pool.run(train, 1, num_leaves, 4)
    losses = [result.loss for result in expected[0]]
    assert all(result.applied for result in expected[0])
    assert len(set(losses)) == 4
    for size in (2, 3, 4, 5, 7, 8):
        for outcome in pool.run(train, size, num_leaves, 4):
            assert outcome == expected, size


def train_unevenly(seat, lengths, zero):
    mesh = seat.mesh(Layout(dp=seat.size), zero.shard_size(seat.size))
    engine = Engine(spec(12, 2, zero=zero))
    engine.form(mesh, lengths)
    engine.reset()
    results = [engine.step(k, work_of(mesh, k)) for k in (1, 2)]
    mesh.close()
    return results, state_hash(engine) if zero.stage == 0 else None


@pytest.mark.parametrize("lengths", [(8, 4), (1, 5, 6), (0, 12)])
def test_slow_replicas_may_compute_fewer_leaves(pool, lengths):
    [expected] = pool.run(train, 1, 12, 2)
    shared = [ZeroSpec(stage=stage, bucket_bytes=1 << 14) for stage in (1, 2, 3)]
    for zero in (ZeroSpec(), *shared):
        for results, state in pool.run(train_unevenly, len(lengths), lengths, zero):
            assert results == expected[0]
            assert state in (None, expected[1])


def test_more_ranks_than_leaves_are_legal(pool):
    [expected] = pool.run(train, 1, 3, 2)
    for outcome in pool.run(train, 5, 3, 2):
        assert outcome == expected


def change_ranks(seat, sizes, num_steps):
    """Each generation trains `num_steps` steps with other ranks; the rest sit it out."""
    engine = started(Mesh.alone())
    step = 0
    for number, size in enumerate(sizes):
        take_part = seat.rank < size
        mesh = seat.mesh_part(size, number) if take_part else None
        for _ in range(num_steps):
            step += 1
            if take_part:
                engine.step(step, work_of(mesh, step))
        if mesh:
            mesh.close()
    return state_hash(engine)


def test_the_count_of_ranks_may_change_between_steps(pool):
    unbroken = pool.run(train, 1, 12, 6)[0][1]
    assert pool.run(change_ranks, 4, (4, 3, 2), 2)[0] == unbroken


def watch(seat):
    mesh = seat.mesh()
    engine = started(mesh, spec(4, 1))
    stamps = []
    work = work_of(mesh, 1, stamp=lambda *stamp: stamps.append(stamp), drain=seat.rank == 1)
    result = engine.step(1, work)
    mesh.close()
    return stamps, result


def test_stamps_surround_the_update_and_one_request_counts_for_all(pool):
    for stamps, result in pool.run(watch, 2):
        assert [phase for _, _, phase in stamps[-3:]] == [
            RankPhase.COMPUTING,
            RankPhase.UPDATING,
            RankPhase.AT,
        ]
        assert [operation for _, operation, _ in stamps] == list(range(len(stamps)))
        assert {step for step, _, _ in stamps} == {1}
        assert result.drain
        assert not result.save


def test_samples_and_digest_are_added_over_all_ranks(pool):
    expected = StepDigest()
    for first in range(0, 48, 2):
        expected += StepDigest(high=first << 40, low=first, count=2)
    for results, _ in pool.run(train, 3, 12, 1):
        assert results[0].samples == 48
        assert results[0].tokens == 48 * MODEL.seq_len
        assert results[0].digest == expected.hex()


def fence_at(seat, phase_number):
    """The fence rises during the second step; the state must be that of step 1, then go on."""
    fence = GenerationFence()
    mesh = seat.mesh(fence=fence)
    engine = started(mesh)
    engine.step(1, work_of(mesh, 1))
    before = state_hash(engine)

    def stamp(_, number, phase):
        if number == phase_number and phase == RankPhase.COMPUTING:
            fence.up(seat.generation)

    try:
        engine.step(2, work_of(mesh, 2, stamp=stamp))
    except Exception as error:  # noqa: BLE001 - either side may see it first
        kind = type(error).__name__
    mesh.close()
    kept = state_hash(engine) == before and engine.at_step == 1
    again = seat.mesh(generation=seat.generation + 3 * 10**6)
    engine.step(2, work_of(again, 2))
    again.close()
    return kind, kept, state_hash(engine)


@pytest.mark.parametrize("phase_number", [0, 7, 14])
def test_a_fence_anywhere_in_a_step_leaves_the_state_before_it(pool, phase_number):
    unbroken = pool.run(train, 1, 12, 2)[0][1]
    for kind, kept, final in pool.run(fence_at, 2, phase_number):
        assert kind in ("Cancelled", "GroupError")
        assert kept
        assert final == unbroken
