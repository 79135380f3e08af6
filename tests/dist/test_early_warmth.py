"""A warm process that is begun with its node, before there is an agent that could."""

import os
import pickle
import signal
import socket
import subprocess
import sys
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


def as_agent(spec, place, **own):
    """What an agent finds with this environment."""
    return found_early(pickle.dumps(spec), {**os.environ, EARLY: place, **own})


def test_the_first_agent_has_it_and_the_next_has_none(spec, place, early):
    found = as_agent(spec, place)
    with found.line as line:
        assert found.process.pid == early
        assert heard_word(line) == (Warm(), [])
        assert as_agent(spec, place) is None
    assert found.process.wait(60) == 0  # its agent is gone
    assert found.process.poll() == 0


def test_it_forks_for_its_agent(spec, place, early):
    found = as_agent(spec, place)
    with found.line as line:
        heard_word(line)
        ours, theirs = os.pipe()
        os.close(ours)
        seat = VaultSeat(node=NODE, node_ip="127.0.0.1", incarnation=1)
        say(line, ForkSeat(number=1, seat=seat), theirs)
        word, descriptors = heard_word(line)
        assert isinstance(word, Forked)
        assert look(word.pid).parent == early
        os.close(theirs)
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


TOLD = """
import os, socket, sys
from remesh.actors.cluster.warm_start import taken_on
os.setpriority(os.PRIO_PROCESS, 0, 10)
line, file = taken_on(socket.socket(fileno=int(sys.argv[1])))
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
    assert not list(Path(tmp_path).iterdir())
