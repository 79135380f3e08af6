"""User 12: where a rank stands, seen from outside while it is in a collective or stopped."""

import os
import signal
from pathlib import Path

import pytest
import torch
from waiting import soon

from remesh.actors.node.own_log import divert
from remesh.actors.node.processes import look
from remesh.actors.node.stacks import PY_SPY, stacks_of
from remesh.parallel.groups.collectives import all_reduce_

NO_PY_SPY = Path("/nonexistent/py-spy")


def wait_for_rank_one(seat, folder):
    """Rank 0 waits in gloo until rank 1, which looks at it meanwhile, takes part as well."""
    group = seat.form()
    if seat.rank == 0:
        divert(Path(folder), "worker-0")
        seat.say("diverted")
    else:
        seat.hear("go on")
    numbers = torch.ones(1000)
    all_reduce_(group, numbers)
    return numbers[0].item()


@pytest.fixture
def blocked(pool, tmp_path):
    """Rank 0's process, which the kernel shows to be asleep in its collective."""
    folder = tmp_path / "private"
    run = pool.start(wait_for_rank_one, 2, str(folder))
    run.hear("diverted", ranks=[0])
    yield run, run.pids[0], folder
    run.say("go on")
    assert run.results() == [2.0, 2.0]  # whoever was looked at trains on
    run.signal(0, signal.SIGKILL)  # its output is not the pool's any more


@pytest.mark.parametrize("py_spy", [PY_SPY, NO_PY_SPY])
def test_a_rank_that_waits_in_gloo_shows_its_stack(blocked, py_spy):
    _, pid, folder = blocked
    told = []
    soon(lambda: told.append(stacks_of(look(pid), folder, "worker-0", py_spy)) or in_gloo(told[-1]))
    assert "wait_for_rank_one" in told[-1]


def in_gloo(text):
    return "_wait" in text and "group.py" in text


def test_a_rank_that_is_stopped_shows_its_stack_or_says_why_not(blocked):
    _, pid, folder = blocked
    os.kill(pid, signal.SIGSTOP)
    try:
        soon(lambda: look(pid).stopped)
        assert "wait_for_rank_one" in stacks_of(look(pid), folder, "worker-0")
        told = stacks_of(look(pid), folder, "worker-0", NO_PY_SPY)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert told.startswith("it is stopped, so it cannot tell; and py-spy could not look: ")


def test_who_has_no_log_of_ours_is_not_signalled(blocked, tmp_path):
    """The signal would end a process that does not expect it."""
    _, pid, _ = blocked
    told = stacks_of(look(pid), tmp_path / "none", "worker-0", NO_PY_SPY)
    assert told.startswith("it did not tell: ")
