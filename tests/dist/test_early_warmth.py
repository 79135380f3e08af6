"""A warm process that is begun with its node, before there is an agent that could."""

import ast
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from node_house import NODE, clear_folders, house_spec
from waiting import PATIENCE_S, soon

from remesh.actors.agent.fork_words import Forked, ForkSeat, Warm, heard_word, say
from remesh.actors.cluster import warm_start
from remesh.actors.cluster.warm_start import EARLY, NICENESS, begin_early, found_early
from remesh.actors.node.processes import look
from remesh.actors.node.seats import VaultSeat

NICER, NICEST = 10, 19


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
    for left in filter(look, waiting_at(place)):
        os.kill(left, signal.SIGKILL)


def waiting_at(place):
    """The pids of those who have a door there."""
    return [int(door.suffix[1:]) for door in Path(place).parent.glob(f"{Path(place).name}.*")]


def until_another_waits(place):
    (pid,) = soon(lambda: waiting_at(place))
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
    assert had[0].process.wait(PATIENCE_S) == 0  # its agent is gone
    assert had[1].process.poll() is None
    for found in had[1:]:
        found.line.close()
        assert found.process.wait(PATIENCE_S) == 0


def test_of_two_agents_that_come_before_it_has_loaded_one_has_it(spec, place, early):
    os.kill(early, signal.SIGSTOP)
    found = as_agent(spec, place)
    assert found.process.pid == early
    assert as_agent(spec, place) is None
    os.kill(early, signal.SIGCONT)
    with found.line as line:
        assert heard_word(line) == (Warm(), [])


def test_what_it_forks_is_less_urgent_than_its_loading_and_than_who_waits(spec, place, early):
    loading = os.getpriority(os.PRIO_PROCESS, early)
    found = as_agent(spec, place, **{NICENESS: str(NICEST)})
    with found.line as line:
        heard_word(line)
        waiting = until_another_waits(place)
        assert os.getpriority(os.PRIO_PROCESS, waiting) == loading < NICEST
        assert os.getpriority(os.PRIO_PROCESS, early) == NICEST


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
    assert select.select([waiting], [], [], PATIENCE_S)[0]
    assert found.process.pid == first
    assert found.process.wait(PATIENCE_S) == 0
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
        assert found.process.wait(PATIENCE_S) == 0
        found.process.kill()  # nobody any more


def test_it_is_nicer_than_its_node_as_long_as_nobody_has_it(early):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, early) == min(own + NICER, NICEST)


BEGUN = "from remesh.actors.cluster.warm_start import begin_early"
TOLD = """
import importlib.util, os, socket, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("warm_start", sys.argv[2])
sys.modules["warm_start"] = warm_start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(warm_start)
last = Path("/proc/self/oom_score_adj")
os.setpriority(os.PRIO_PROCESS, 0, 10)
last.write_text("900")
node = os.pidfd_open(os.getppid())
line, file = warm_start.taken_on(socket.socket(fileno=int(sys.argv[1])), node)
print("to its agent", flush=True)
names = ("OF_ITS_AGENT", "OF_ITS_NODE", "OMP_NUM_THREADS")
found = [os.environ.get(name) for name in names]
found += [os.getpriority(os.PRIO_PROCESS, 0), last.read_text(), sys.path[-1], os.read(file, 9)]
line.send(repr(found).encode())
"""


@contextmanager
def told_by(place, code):
    """A process with this code of a warm start, whose own output goes nowhere."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        number = door.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", TOLD, str(number), code],
            pass_fds=[number],
            env={**os.environ, "OF_ITS_NODE": "yes"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        door.bind(f"{place}.{process.pid}")
        door.listen(1)
    yield process
    process.wait()
    os.kill(until_another_waits(place), signal.SIGKILL)


def test_it_takes_on_what_it_would_have_had_from_its_agent(place, capfd):
    own = {**os.environ, EARLY: place, "OF_ITS_AGENT": "yes", "OMP_NUM_THREADS": "7"}
    sys.path.append("/last")
    with told_by(place, warm_start.__file__):
        try:
            found = found_early(b"the spec", own)
        finally:
            sys.path.remove("/last")
        with found.line as line:
            told = ast.literal_eval(line.recv(999).decode())
    own_last = Path("/proc/self/oom_score_adj").read_text()
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    assert told == ["yes", None, "1", niceness, own_last, "/last", b"the spec"]
    assert capfd.readouterr().out == "to its agent\n"


def test_one_of_another_remesh_ends_and_says_so_to_the_agent(place, tmp_path, capfd):
    other = tmp_path / "other" / "warm_start.py"
    other.parent.mkdir()
    shutil.copy(warm_start.__file__, other)
    with told_by(place, str(other)) as process:
        found = found_early(b"the spec", {**os.environ, EARLY: place})
        with found.line as line:
            assert line.recv(9) == b""
    assert process.returncode == 1
    assert "another Remesh" in capfd.readouterr().err


RAY = """
import os
begun = os.listdir(os.path.dirname(os.environ["REMESH_WARM"]))
def main():
    print(len(begun))
"""


def test_a_node_begins_it_before_it_loads_ray(tmp_path):
    scripts = tmp_path / "own" / "ray" / "scripts"
    scripts.mkdir(parents=True)
    for package in (scripts, scripts.parent):
        (package / "__init__.py").touch()
    (scripts / "scripts.py").write_text(RAY)
    (tmp_path / "doors").mkdir()
    place = tmp_path / "doors" / "n0.warm"
    path = os.pathsep.join([str(tmp_path / "own"), *sys.path])
    told = subprocess.run(
        [sys.executable, "-m", "remesh.actors.cluster.local_node", "start"],
        env={**os.environ, "PYTHONPATH": path, EARLY: str(place)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert told.stdout == b"1\n"
    assert soon(lambda: not waiting_at(place))  # it has ended with its node
