"""A rank that is frozen amid any operation, evicted, and goes on: nothing of it counts any more.

All is real but Ray: the machine of the controller, the agent, its ranks, their engines and groups,
and the vault. Each rank holds a part of the state that no other has, so the state after each
eviction comes from the vault, out of memory that the frozen rank may still write to. The rank goes
on at any moment of the recovery, and nobody tells it anything.

Without the fence it fails: where `GenerationFence.up` does nothing, the survivor waits for the rank
that is frozen until it is ended for that itself. What a vault without its part of the fence would
come to is in test_vault_zombie.py.
"""

import os
import signal
from random import Random

import pytest
from waiting import soon

from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.commands import EndWorker, Form
from remesh.orchestrator.control.words.recovery import slots_of

MOST_ENDED = 0.75  # on a machine so busy that they answer late; all, if there were no fence
ROUNDS_FROM_VAULTS = 0.9  # of a first step there is no slot yet
WITHIN_A_STEP = 60_000  # turns of an empty loop


@pytest.mark.timeout(3000)  # each round has deadlines of its own
def test_nothing_counts_of_a_rank_that_goes_on_after_its_eviction(make_control, request):
    chance = Random(1)
    house = make_control("hurt", patience_s=0.4)
    rounds = request.config.getoption("--zombies")
    zombies = {evict(house, chance) for _ in range(rounds)}
    house.trains(house.state.step + 2)
    found = house.records()
    assert len(from_vaults(house)) >= ROUNDS_FROM_VAULTS * rounds
    ended = {one.worker for one in house.decided if isinstance(one, EndWorker)}
    assert zombies <= ended
    assert len(ended - zombies) <= MOST_ENDED * rounds  # of those who could be fenced
    undisturbed = make_control("calm")
    while undisturbed.state.step < len(found):
        undisturbed.trains(undisturbed.state.step + 1)
    expected = undisturbed.records()[: len(found)]
    assert [one and (one.did.loss, one.did.digest) for one in found] == [
        (one.did.loss, one.did.digest) for one in expected
    ]


def evict(house, chance):
    """One of the two ranks, at some moment; it goes on at some moment of the recovery."""
    workers = house.trains(house.state.step + chance.randint(2, 4))
    generation, zombie = house.state.last_generation, chance.choice(workers)
    pid = house.household.rank(zombie).pid
    house.reach.lost.add(zombie)
    for _ in range(chance.randrange(WITHIN_A_STEP)):
        pass
    os.kill(pid, signal.SIGSTOP)
    assert soon(lambda: zombie not in house.state.roster.workers)
    if chance.random() < 2 / 3:
        assert soon(lambda: house.state.last_generation > generation)
    if chance.random() < 1 / 2:
        house.trains(house.state.step + 1)
    known = len(house.events)
    os.kill(pid, signal.SIGCONT)
    assert soon(lambda: said_by(zombie, house.events[known:]))  # it has found its mesh gone
    house.trains(house.state.step + 1)
    house.reach.found_again(zombie)
    assert house.lost(zombie)
    return zombie


def from_vaults(house):
    """The meshes whose state came out of slots."""
    return [one for one in house.decided if isinstance(one, Form) and slots_of(one.restore)]


def said_by(worker, events):
    return [event for event in events if getattr(event, "worker", "") == worker
            and not isinstance(event, ev.WorkerFrozen | ev.StepsDone)]  # fmt: skip
