"""A rank goes away in the middle of training; the others form anew and end with the same bits."""

import os
import random
import signal
import threading
from dataclasses import replace

import pytest
import torch
from small_engine import spec, state_hash, work_of

from remesh.parallel import collectives
from remesh.parallel.engine import Engine
from remesh.parallel.errors import Cancelled, GroupError
from remesh.parallel.fence import Fence
from remesh.parallel.restore import broadcast_state

NUM_STEPS = 8
NUM_OPERATIONS = 18  # of a step at four ranks: three leaves of two microbatches
VICTIM = 2


def unbroken(seat):
    engine = Engine(spec())
    engine.reset()
    group = seat.form()
    losses = train(engine, group)
    group.close()
    return losses, state_hash(engine)


def train(engine, group):
    steps = range(engine.at_step + 1, NUM_STEPS + 1)
    return {step: engine.step(step, work_of(engine, group, step)).loss for step in steps}


def survive(seat, number, fatal_step, fatal_operation):
    """Trains in two generations, the second without the victim."""
    engine, fence, losses = Engine(spec()), Fence(), {}
    engine.reset()
    group = seat.form(fence)

    def stamp(step, operation, _phase):
        if (step, operation) == (fatal_step, fatal_operation):
            if seat.rank == VICTIM:
                os.kill(os.getpid(), number)
            threading.Timer(0.2, fence.up, [seat.generation]).start()

    try:
        for step in range(1, NUM_STEPS + 1):
            work = work_of(engine, group, step, stamp=stamp)
            losses[step] = engine.step(step, work).loss
    except (Cancelled, GroupError):
        group.close()
    held = engine.at_step
    others = replace(seat, rank=seat.rank - (seat.rank > VICTIM), size=seat.size - 1)
    group = others.form(generation=seat.generation + 5 * 10**6)
    stood = torch.zeros(others.size, dtype=torch.int64)
    stood[others.rank] = held
    collectives.all_reduce_(group, stood)
    newest = int(stood.max())
    broadcast_state(engine, group, source=int(stood.argmax()), at_step=newest)
    assert newest - int(stood.min()) <= 1
    losses |= train(engine, group)
    group.close()
    return held, losses, state_hash(engine)


@pytest.fixture(scope="module")
def expected(sessions_pool):
    return sessions_pool.run(unbroken, 1)[0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_curve_and_the_state_end_with_the_same_bits(pool, expected, number, seed):
    losses, final = expected
    rng = random.Random(seed)
    place = (rng.randint(2, NUM_STEPS - 1), rng.randint(0, NUM_OPERATIONS - 1))
    outcomes = pool.start(survive, 4, number, *place).results([0, 1, 3])
    for held, seen, state in outcomes:
        assert place[0] - 1 <= held <= place[0]
        assert state == final
        assert all(losses[step] == loss for step, loss in seen.items())
