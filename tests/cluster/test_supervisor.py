"""The supervisor ends what it has started, whatever becomes of the process that held its pipe."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S, soon

from remesh.actors.node.processes import kill, look, session_members

FAMILY = """
import os, signal, sys, time
for _ in range(2):
    if os.fork() == 0:
        os.setpgid(0, 0)
        os.fork()
        time.sleep(600)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""

CALM = "import time; time.sleep(600)"

STRAY = """
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        open(os.environ["STRAY"], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""

OWNER = """
import subprocess, sys, time
supervisor = subprocess.Popen(
    [sys.executable, "-m", "remesh.actors.cluster.supervisor", sys.argv[1]],
    stdin=subprocess.PIPE, start_new_session=True,
)
print(supervisor.pid, flush=True)
for line in sys.stdin:
    supervisor.stdin.write(line.encode())
    supervisor.stdin.flush()
time.sleep(600)
"""


def exists(pid):
    """As a zombie too."""
    return Path(f"/proc/{pid}").exists()


def request(folder, program):
    return {
        "argv": [sys.executable, "-S", "-c", program],
        "env": {**os.environ, "STRAY": str(folder / "stray")},
        "log": str(folder / "node.log"),
    }


class Supervisor:
    """A supervisor whose pipe this process holds."""

    def __init__(self, folder):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "remesh.actors.cluster.supervisor", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def start(self, program):
        line = json.dumps(request(self.folder, program)).encode() + b"\n"
        self.process.stdin.write(line)
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        return self.process.wait(timeout=PATIENCE_S)


@pytest.fixture
def supervisor(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    started = Supervisor(folder)
    yield started
    if not started.process.stdin.closed:
        started.close()
    started.process.stdout.close()


def test_the_end_of_the_pipe_ends_every_process_of_every_node(supervisor):
    sessions = {supervisor.start(FAMILY), supervisor.start(FAMILY)}
    assert soon(lambda: len(session_members(sessions)) == 10)
    pids = session_members(sessions)
    for pid in pids[3:5]:
        os.kill(pid, signal.SIGSTOP)
    assert supervisor.close() == 0
    assert not [pid for pid in pids if exists(pid)]
    assert not supervisor.folder.exists()


def test_a_process_that_left_its_session_is_ended_too(supervisor):
    supervisor.start(STRAY)
    stray = supervisor.folder / "stray"
    pid = int(soon(lambda: stray.exists() and stray.read_text()))
    assert soon(lambda: look(pid).parent == supervisor.process.pid)
    supervisor.close()
    assert look(pid) is None


def test_signals_for_the_command_do_not_reach_it(supervisor):
    session = supervisor.start(FAMILY)
    for number in (signal.SIGINT, signal.SIGTERM):
        supervisor.process.send_signal(number)
    assert supervisor.start("pass")
    assert look(session)


def test_a_dead_node_leaves_no_zombie_and_the_others_alone(supervisor):
    dead, alive = supervisor.start(FAMILY), supervisor.start(FAMILY)
    assert soon(lambda: len(session_members({dead})) == 5)
    for pid in session_members({dead}):
        kill(pid)
    assert soon(lambda: not exists(dead))
    assert look(alive)


def test_a_node_that_cannot_be_started_ends_the_supervisor(supervisor):
    session = supervisor.start(FAMILY)
    broken = {**request(supervisor.folder, ""), "argv": ["/none"]}
    supervisor.process.stdin.write(json.dumps(broken).encode() + b"\n")
    supervisor.process.stdin.flush()
    assert supervisor.process.stdout.readline() == b""
    assert supervisor.process.wait(timeout=PATIENCE_S) == 1
    assert session_members({session}) == []


def test_killing_the_owner_outright_ends_everything(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pid = int(owner.stdout.readline())
    for _ in range(2):
        owner.stdin.write(json.dumps(request(folder, FAMILY)).encode() + b"\n")
        owner.stdin.flush()
    sessions = {int(owner.stdout.readline()) for _ in range(2)}
    assert soon(lambda: len(session_members(sessions)) == 10)
    os.kill(session_members(sessions)[0], signal.SIGSTOP)
    owner.kill()
    owner.wait()
    assert soon(lambda: not session_members(sessions))
    assert soon(lambda: look(pid) is None)
    assert not folder.exists()
    owner.stdin.close()
    owner.stdout.close()


def test_the_nodes_end_with_a_supervisor_that_is_killed(supervisor):
    """security B4: nobody else would own them."""
    sessions = [supervisor.start(CALM), supervisor.start(CALM)]
    assert soon(lambda: len(session_members(set(sessions))) == 2)
    supervisor.process.kill()
    supervisor.process.wait()
    assert soon(lambda: not session_members(set(sessions)))
