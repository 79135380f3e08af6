"""A warm process that is begun with its node, before there is an agent that could."""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from node_house import NODE, clear_folders, house_spec

from remesh.actors.agent.fork_words import Forked, ForkSeat, Warm, heard_word, say
from remesh.actors.cluster.warm_start import EARLY, begin_early, found_early
from remesh.actors.node.processes import look
from remesh.actors.node.seats import VaultSeat


@pytest.fixture
def spec(tmp_path):
    spec = house_spec(tmp_path)
    yield spec
    clear_folders(spec.run)


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "n0.warm")


@pytest.fixture
def early(place):
    pid = begin_early(place)
    yield pid
    if look(pid):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for waiting in waiting_at(place):
        os.kill(waiting, signal.SIGKILL)


def waiting_at(place):
    """The pids of those who have a door there."""
    return [int(door.suffix[1:]) for door in Path(place).parent.glob(f"{Path(place).name}.*")]


def until_another_waits(place, limit_s=60):
    until_s = time.monotonic() + limit_s
    while not (found := waiting_at(place)) and time.monotonic() < until_s:
        time.sleep(0.01)
    (pid,) = found
    return pid


def as_agent(spec, place, **own):
    """What an agent finds with this environment."""
    return found_early(pickle.dumps(spec), {**os.environ, EARLY: place, **own})


def test_each_agent_has_one_to_itself_which_leaves_another_behind(spec, place, early):
    had = []
    for _ in range(3):
        had.append(as_agent(spec, place))
        assert heard_word(had[-1].line) == (Warm(), [])
        until_another_waits(place)
    assert had[0].process.pid == early
    assert len({found.process.pid for found in had}) == 3
    sessions = {look(found.process.pid).session for found in had}
    assert sessions == {os.getsid(0)}  # the node's, with which all of them die
    had[0].line.close()
    assert had[0].process.wait(60) == 0  # its agent is gone
    assert had[1].process.poll() is None
    for found in had[1:]:
        found.line.close()
        assert found.process.wait(60) == 0


def test_of_two_agents_that_come_before_it_has_loaded_one_has_it(spec, place, early):
    found = as_agent(spec, place)
    assert found.process.pid == early
    assert as_agent(spec, place) is None
    with found.line as line:
        assert heard_word(line) == (Warm(), [])


def test_one_that_waits_ends_with_its_node(tmp_path):
    node = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{BEGUN}; print(begin_early({str(tmp_path / 'n0.warm')!r})); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    first = int(node.stdout.readline())
    found = found_early(b"none", {**os.environ, EARLY: str(tmp_path / "n0.warm")})
    waiting = os.pidfd_open(until_another_waits(str(tmp_path / "n0.warm")))
    node.communicate(b"\n")
    assert select.select([waiting], [], [], 60)[0]
    assert found.process.pid == first
    assert found.process.wait(60) == 0
    assert not list(tmp_path.iterdir())
    os.close(waiting)


def test_it_forks_for_its_agent(spec, place, early):
    found = as_agent(spec, place)
    with found.line as line:
        heard_word(line)
        ours, theirs = socket.socketpair()
        seat = VaultSeat(node=NODE, node_ip="127.0.0.1", incarnation=1)
        say(line, ForkSeat(number=1, seat=seat), theirs.fileno())
        word, descriptors = heard_word(line)
        assert isinstance(word, Forked)
        assert look(word.pid).parent == early
        ours.close()
        theirs.close()
        os.close(descriptors[0])


def test_where_none_was_begun_or_it_has_died_there_is_none(spec, place):
    assert found_early(pickle.dumps(spec), os.environ) is None
    assert as_agent(spec, place) is None
    pid = begin_early(place)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert as_agent(spec, place) is None


def test_one_that_is_stopped_can_be_ended_and_waited_for(spec, place, early):
    found = as_agent(spec, place)
    with found.line:
        os.kill(early, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            found.process.wait(0)
        assert found.process.poll() is None
        found.process.kill()
        assert found.process.wait(60) == 0
        found.process.kill()  # nobody any more


BEGUN = "from remesh.actors.cluster.warm_start import begin_early"
TOLD = """
import os, socket, sys
from remesh.actors.cluster.warm_start import taken_on
os.setpriority(os.PRIO_PROCESS, 0, 10)
line, file = taken_on(socket.socket(fileno=int(sys.argv[1])), os.pidfd_open(os.getppid()))
print("to its agent", flush=True)
found = (os.environ["OF_ITS_AGENT"], os.getpriority(os.PRIO_PROCESS, 0), sys.path[-1])
line.send(repr((*found, os.read(file, 9))).encode())
"""


def test_it_takes_on_what_it_would_have_had_from_its_agent(tmp_path, capfd):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        number = door.fileno()
        process = subprocess.Popen([sys.executable, "-c", TOLD, str(number)], pass_fds=[number])
        door.bind(str(tmp_path / f"n0.warm.{process.pid}"))
        door.listen(1)
    environment = {**os.environ, EARLY: str(tmp_path / "n0.warm"), "OF_ITS_AGENT": "yes"}
    sys.path.append("/last")
    try:
        found = found_early(b"the spec", environment)
    finally:
        sys.path.remove("/last")
    with found.line as line:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        assert line.recv(999).decode() == repr(("yes", niceness, "/last", b"the spec"))
    process.wait()
    assert capfd.readouterr().out == "to its agent\n"
    os.kill(until_another_waits(tmp_path / "n0.warm"), signal.SIGKILL)
