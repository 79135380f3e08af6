"""A rank goes away in the middle of training; the others form anew and end with the same bits."""

import os
import random
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from small_engine import started, state_hash, work_of

from remesh.parallel.groups import collectives
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.plan.errors import Cancelled, GroupError

NUM_STEPS = 8
NUM_OPERATIONS = 15  # of a step at four ranks: three leaves of two microbatches
VICTIM = 2


def unbroken(seat):
    mesh = seat.mesh()
    engine = started(mesh)
    losses = train(engine, mesh)
    mesh.close()
    return losses, state_hash(engine)


def train(engine, mesh):
    steps = range(engine.at_step + 1, NUM_STEPS + 1)
    return {step: engine.step(step, work_of(mesh, step)).loss for step in steps}


def survive(seat, number, fatal_step, fatal_operation):
    """Trains in two generations, the second without the victim."""
    fence, losses = GenerationFence(), {}
    mesh = seat.mesh(fence=fence)
    engine = started(mesh)

    def leave():
        seat.hear("struck", of=VICTIM)
        time.sleep(0.2)
        fence.up(seat.generation)

    def stamp(step, operation, _phase):
        if (step, operation) == (fatal_step, fatal_operation):
            if seat.rank == VICTIM:
                seat.say("struck")
                os.kill(os.getpid(), number)
            threading.Thread(target=leave, daemon=True).start()

    try:
        for step in range(1, NUM_STEPS + 1):
            work = work_of(mesh, step, stamp=stamp)
            losses[step] = engine.step(step, work).loss
    except (Cancelled, GroupError):
        mesh.close()
    holding = engine.holding()
    others = replace(seat, rank=seat.rank - (seat.rank > VICTIM), size=seat.size - 1)
    mesh = others.mesh(generation=seat.generation + 5 * 10**6)
    engine.form(mesh)
    stood = torch.tensor([holding.at_step, -holding.at_step])
    collectives.all_reduce_(mesh.world, stood, "max")
    newest, oldest = stood.tolist()
    assert newest + oldest <= 1
    engine.share(holding, newest)
    losses |= train(engine, mesh)
    mesh.close()
    return holding.at_step, losses, state_hash(engine)


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
