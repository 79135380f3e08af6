"""What ranks say to each other once a step beside gradients and activations: one small message."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from small_engine import MODEL, filler, formed, spec, started, work_of, zero

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.plan.layout import Layout
from remesh.parallel.step.vote import Ballot, vote


class Counted:
    """A group, and how many operations of all ranks have begun on it under this name."""

    def __init__(self, group):
        self.group = group
        self.count = 0

    def start(self, *operation):
        self.count += 1
        return self.group.start(*operation)

    def tell(self, *told):
        self.count += 1
        return self.group.tell(*told)

    def __getattr__(self, name):
        return getattr(self.group, name)


def messages(seat, layout, more):
    """Of each step in the name of all ranks, the step that is safe, and the norm."""
    mesh, engine = formed(seat, layout, spec(4, 2, **more))
    world = Counted(mesh.world)
    counted = replace(mesh, world=world)
    engine.form(counted)
    told = []
    for step in (1, 2, 3):
        before = world.count
        safe = (step - 1 + seat.rank, False)
        did = engine.step(step, work_of(counted, step, snapshots=partial(tuple, safe)))
        told.append((world.count - before, did.stable_step, did.grad_norm))
    mesh.close()
    return told


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        (Layout(dp=2), {}),
        (Layout(dp=4), {}),
        (Layout(dp=4), {"same_bits": False}),
        (Layout(dp=2), {"zero": zero(3)}),
        (Layout(dp=4), {"zero": zero(3)}),
        (Layout(dp=4), {"zero": zero(1, group=2)}),
        (Layout(dp=2, pp=2), {}),
        (Layout(dp=2, tp=2), {"zero": zero(2)}),
    ],
)
def test_a_step_has_one_message_of_all_for_loss_norm_and_the_step_that_is_safe(pool, layout, more):
    """In the first one the ranks do not know yet how large gradients are."""
    found = pool.run(messages, layout.world_size, layout, more)
    assert found == [found[0]] * layout.world_size
    assert [count for count, _, _ in found[0]] == [2, 1, 1]
    assert [stable for _, stable, _ in found[0]] == [0, 1, 2]


def all_messages(seat, tied):
    """Of each step in any name, of ranks that are all replicas and read each other's memory."""
    small = replace(MODEL, tied=tied)
    mesh, engine = formed(seat, Layout(dp=seat.size), spec(4, 2, model=small))
    world = Counted(mesh.world)
    assert mesh.data is mesh.replica is mesh.world
    counted = replace(mesh, world=world, data=world, replica=world)
    engine.form(counted)
    told = []
    for step in (1, 2, 3):
        before = world.count
        engine.step(step, work_of(counted, step))
        told.append(world.count - before)
    mesh.close()
    return told


@pytest.mark.parametrize(("tied", "expected"), [(False, 3), (True, 4)])
def test_a_step_of_replicas_has_three_messages_and_one_more_of_a_tied_model(pool, tied, expected):
    """Where nodes lie, that pieces are there, the vote; and that a sum may be changed before it."""
    for found in pool.run(all_messages, 3, tied):
        assert found[1:] == [expected] * 2


def norms(seat, layout, scales):
    """Of gradients whose size changes from step to step, with the messages that it took."""
    mesh, engine = formed(seat, layout, spec(4, 2))
    world = Counted(mesh.world)
    engine.form(replace(mesh, world=world))
    norm, told = engine.assembly.norm, []
    generator = torch.Generator().manual_seed(0)
    shards = engine.shard_state.shards
    drawn = [torch.randn(len(one.values), generator=generator) for one in shards]
    for scale in scales:
        before = world.count
        own = norm.measure([one * scale for one in drawn])
        total = vote(world, Ballot(cell=own.cell, norm_units=own.units))
        root = norm.total(own, total.cell, total.norm_units).root
        told.append((world.count - before, root))
    mesh.close()
    return told


def test_a_norm_has_the_same_bits_at_every_number_of_replicas_whatever_came_before_it(pool):
    scales = (1.0, 1.0, 1e-3, 1e-3, 1e9, 1e-25, 1e-25, 0.0, math.inf, 1.0, 1.0)
    alone, *_ = pool.run(norms, 1, Layout(), scales)
    found = pool.run(norms, 3, Layout(dp=3), scales)
    assert found == [found[0]] * 3
    assert [root for _, root in found[0]] == [root for _, root in alone]
    assert [count for count, _ in found[0]] == [2, 1, 2, 1, 2, 3, 3, 2, 2, 2, 1]
    again, *_ = pool.run(norms, 3, Layout(dp=3), scales[-1:])
    assert again[0][1] == found[0][-1][1]


def votes(seat, each_to_each):
    """A ballot of each rank's own, by one way or the other, and the operations that it took."""
    mesh, _ = formed(seat, Layout(dp=4), spec(4, 2))
    rank = seat.rank
    mine = Ballot(
        loss_units=rank + 1, samples=1, nonfinite=rank % 2, cell=rank, sealed_step=9 - rank
    )
    world = Counted(mesh.world)
    total = vote(world, mine, each_to_each=each_to_each)
    unsafe = vote(world, Ballot(cell=-rank), each_to_each=each_to_each)
    mesh.close()
    return total, unsafe, world.count


def test_many_ranks_vote_as_few_do_by_two_reductions_and_not_each_with_each(pool):
    few, many = pool.run(votes, 4, 4), pool.run(votes, 4, 3)
    assert [told[:2] for told in many] == [told[:2] for told in few] == [few[0][:2]] * 4
    total, unsafe, _ = few[0]
    assert (total.loss_units, total.samples, total.nonfinite) == (10, 4, 2)
    assert (total.cell, total.sealed_step) == (3, 6)
    assert (unsafe.cell, unsafe.sealed_step) == (0, None)
    assert ([told[2] for told in few], [told[2] for told in many]) == ([2] * 4, [4] * 4)


def test_whether_a_snapshot_can_be_taken_is_asked_once_all_is_computed():
    """The one before, copied as the step began, was not safe yet: every other step had none."""
    mesh, filled, asked = Mesh.alone(), [], []

    def fill(first, out):
        filled.append(first)
        return filler(1)(first, out)

    def snapshots():
        asked.append(len(filled))
        return 0, True

    result = started(mesh, spec(4, 2)).step(1, work_of(mesh, 1, fill=fill, snapshots=snapshots))
    assert asked == [8]
    assert (result.stable_step, result.snapshot) == (0, True)
