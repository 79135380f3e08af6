"""A rank that goes in the middle of the backward pass."""

import gc
import os
import signal
import weakref

import pytest
from tensor_model import batch, config_of, formed

from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.plan.errors import Cancelled, GroupError


def disturbed(seat, sequence, disturb):
    """Type of what backward raised, and whether the group outlives its owners."""
    gc.collect()
    gc.disable()
    fence = GenerationFence()
    config = config_of()
    group, shares, model = formed(seat, config, sequence=sequence, fence=fence)
    tokens_BT, targets_BT = batch(config)
    x_BTC = model.layers[0](model.embed(tokens_BT))
    x_BTC.register_hook(lambda _: disturb(seat, fence))
    losses = model.loss(model.layers[1](x_BTC), targets_BT)
    kind = None
    try:
        losses.objective.backward()
    except (GroupError, Cancelled) as error:
        kind = type(error).__name__
    group.close()
    watched = weakref.ref(group)
    del group, shares, model, losses, x_BTC
    outlives = watched() is not None
    gc.enable()
    return kind, outlives


def die(seat, _fence):
    if seat.rank == seat.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)


def raise_fence(seat, fence):
    if seat.rank == 0:
        fence.up(seat.generation)


def lose_a_rank(seat, sequence):
    return disturbed(seat, sequence, die)


def cancel_a_rank(seat, sequence):
    return disturbed(seat, sequence, raise_fence)


@pytest.mark.parametrize("sequence", [False, True])
def test_survivors_of_a_killed_rank_are_free(pool, sequence):
    run = pool.start(lose_a_rank, 4, sequence)
    assert run.results(ranks=range(3)) == [("GroupError", False)] * 3


def test_a_fence_in_the_backward_pass_keeps_its_own_type(pool):
    outcomes = pool.run(cancel_a_rank, 4, True)
    assert outcomes == [("Cancelled", False), *[("GroupError", False)] * 3]
