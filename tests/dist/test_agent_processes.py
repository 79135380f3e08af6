"""The processes of a node's agent: forked from a warm one, ended with it, told when they die."""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from node_house import NODE, House, clear_folders, descriptors, house_spec
from waiting import soon

from remesh.actors.agent.fork_words import Crowded, ForkSeat, Warm, heard_word, say
from remesh.actors.agent.forker import MOST_FAILURES
from remesh.actors.agent.warm_process import Nursery
from remesh.actors.agent.words import StartRank
from remesh.actors.node.leftovers import SHARED_MEMORY, folder_name
from remesh.actors.node.processes import look
from remesh.actors.node.seats import VaultSeat
from remesh.orchestrator.control.words.events import VaultLost, WorkerLost, WorkerReady
from remesh.parallel.doors.addresses import answers, parted
from remesh.parallel.threads import heard_thread


@pytest.fixture
def house(tmp_path):
    house = House(house_spec(tmp_path))
    yield house
    house.close()


def test_four_ranks_are_forked_at_once_and_know_nothing_of_ray(house):
    four = house.start("worker-0", "worker-1", "worker-2", "worker-3")
    parents = {look(one.pid).parent for one in four}
    assert parents == {house.household._forker.warm_pid}
    assert {look(one.pid).session for one in four} == {os.getsid(0)}
    for one in four:
        assert "/ray/" not in Path(f"/proc/{one.pid}/maps").read_text()
    ready = house.told(WorkerReady)
    assert [ready[one.worker].pid for one in four] == [one.pid for one in four]


@pytest.mark.parametrize(
    ("number", "cause"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (signal.SIGABRT, "SIGABRT")],
)
def test_a_death_is_told_with_its_signal(house, number, cause):
    (one,) = house.start("worker-0")
    os.kill(one.pid, number)
    lost = house.lost("worker-0")
    assert lost.cause == f"its process died of {cause}"
    assert lost.died_at_s is not None
    assert look(one.pid) is None


def test_a_frozen_process_is_ended_by_order(house):
    (one,) = house.start("worker-0")
    os.kill(one.pid, signal.SIGSTOP)
    assert house.end("worker-0").cause == "its process died of SIGKILL"


def test_one_that_cannot_be_built_says_why_before_it_ends(house):
    (Path(house.spec.job.data.dir) / "manifest.json").unlink()
    house.start("worker-0")
    lost = house.lost("worker-0")
    assert "manifest.json" in lost.cause + str(
        [e for e in house.events if not isinstance(e, WorkerLost)]
    )


def test_a_warm_process_that_dies_is_replaced_and_its_ranks_live_on(house):
    (one,) = house.start("worker-0")
    warm = house.household._forker.warm_pid
    os.kill(warm, signal.SIGKILL)
    assert soon(lambda: house.household._forker.warm_pid not in (warm, 0))
    house.start("worker-1")
    assert look(one.pid)
    assert house.told(WorkerLost) == {}
    os.kill(one.pid, signal.SIGKILL)
    assert house.lost("worker-0").cause == "its process ended"  # nobody is left to say how


def test_what_was_asked_of_a_warm_process_that_is_stopped_is_asked_of_the_next(house):
    house.start("worker-0")
    os.kill(house.household._forker.warm_pid, signal.SIGSTOP)
    house.start("worker-1")
    assert house.told(WorkerLost) == {}


def test_a_process_with_a_second_thread_forks_nobody(tmp_path):
    """A child would have the locks of a thread that it does not have."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end, line = socket.socketpair()
    nursery = heard_thread(Nursery(theirs, house_spec(tmp_path)).run, name="second")
    with ours, theirs, end:
        nursery.start()
        assert heard_word(ours) == (Warm(), [])
        say(
            ours,
            ForkSeat(number=1, seat=VaultSeat(node=NODE, node_ip="", incarnation=1)),
            line.fileno(),
        )
        line.close()
        word, _ = heard_word(ours)
        assert isinstance(word, Crowded)
        assert word.threads
        assert end.recv(1) == b""  # nobody has kept the other end
        ours.close()
        nursery.join()


def test_where_nothing_can_be_kept_warm_each_process_is_started_by_itself(house, caplog):
    house.start("worker-0")
    forker = house.household._forker
    forker._failures = MOST_FAILURES - 1
    os.kill(forker.warm_pid, signal.SIGKILL)
    assert soon(lambda: forker.line is None)
    one, two = house.start("worker-1", "worker-2")
    assert look(one.pid).parent == look(two.pid).parent == os.getpid()
    assert len([line for line in caplog.messages if "started by itself" in line]) == 1
    os.kill(two.pid, signal.SIGKILL)
    assert house.lost("worker-2").cause == "its process died of SIGKILL"


def test_an_agent_that_is_killed_takes_everything_along(tmp_path):
    """A frozen rank too, and what the vault had in shared memory."""
    with agent_process(tmp_path) as (agent, told):
        pids = [told["worker-0"], told["worker-1"], told["vault"], told["warm"]]
        folder = SHARED_MEMORY / folder_name(told["run"], NODE)
        assert folder.exists()
        os.kill(pids[0], signal.SIGSTOP)
        agent.kill()
        agent.wait()
    assert soon(lambda: not any(look(pid) for pid in pids))
    assert soon(lambda: not folder.exists())
    clear_folders(told["run"])


def test_the_door_of_an_agent_stands_as_long_as_its_process_and_no_longer(tmp_path):
    with agent_process(tmp_path) as (agent, told):
        visitor = socket.create_connection(parted(told["door"]))
        assert not select.select([visitor], [], [], 0)[0]
        os.kill(told["worker-0"], signal.SIGSTOP)  # no process of the node holds it open
        agent.kill()
        agent.wait()
        assert soon(lambda: select.select([visitor], [], [], 0)[0])
        visitor.close()
        assert not answers(parted(told["door"]))
    clear_folders(told["run"])


def test_after_twenty_forks_nothing_is_held_that_was_not_after_four(house):
    def held():
        pids = (os.getpid(), house.household._forker.warm_pid)
        return [descriptors(pid) for pid in pids]

    def fork(*numbers):
        for number in numbers:
            house.start(f"worker-{number}")
            house.end(f"worker-{number}")
        assert soon(lambda: house.household.is_empty)
        gc.collect()  # of what tests before this one have left

    fork(*range(4))
    then = held()
    fork(*range(4, 20))
    # The warm process puts away what it has of the last one after that one has ended.
    assert soon(lambda: all(now <= before for now, before in zip(held(), then, strict=True))), (
        held(),
        then,
    )


def test_a_vault_that_is_killed_is_told_and_follows_another(house):
    vault = house.start_vault()
    os.kill(vault.pid, signal.SIGKILL)
    assert soon(lambda: [e for e in house.events if isinstance(e, VaultLost)])
    house.events.clear()
    assert house.start_vault().pid != vault.pid


def test_a_rank_whose_death_is_not_certain_keeps_its_device(tmp_path):
    house = House(house_spec(tmp_path), devices=(5,))
    try:
        (one,) = house.start("worker-0")
        assert house.told(WorkerReady)["worker-0"].device == 5
        assert b"CUDA_VISIBLE_DEVICES" not in os.environb
        os.kill(one.pid, signal.SIGSTOP)
        house.tell(StartRank(worker="worker-1"))
        soon(lambda: house.household._waiting)
        assert house.household.rank("worker-1") is None
        house.end("worker-0")
        assert soon(lambda: "worker-1" in house.told(WorkerReady))
        assert house.told(WorkerReady)["worker-1"].device == 5
    finally:
        house.close()


@contextmanager
def agent_process(folder):
    """An agent in a process of its own, with what it has started, by name."""
    argv = [sys.executable, str(Path(__file__).with_name("node_house.py")), str(folder)]
    support = str(Path(__file__).parents[1] / "support")
    path = os.pathsep.join([support, *sys.path])
    agent = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        yield agent, json.loads(agent.stdout.readline())
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()
