import os
import signal
import subprocess
import sys

import pytest
from waiting import PATIENCE_S, soon

from remesh.actors.node.processes import kill, look, session_members
from remesh.actors.node.stamps import SIZE_BYTES, Field, Stamps


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_what_one_process_stamps_the_other_reads(tmp_path):
    worker = Stamps.create(tmp_path, "worker-0", os.getpid())
    agent = Stamps.open_all(tmp_path, {})["worker-0"]
    assert agent.worker == "worker-0"
    assert agent[Field.PID] == os.getpid()
    worker[Field.STEP], worker[Field.PHASE] = 2**40, 3
    agent[Field.LEASE_NS] = 7
    assert (agent[Field.STEP], agent[Field.PHASE], worker[Field.LEASE_NS]) == (2**40, 3, 7)
    assert len(Field) * 8 == SIZE_BYTES


def test_a_new_worker_is_alive_and_leased(tmp_path):
    stamps = Stamps.create(tmp_path / "made", "worker-0", os.getpid())
    assert 0 <= stamps.age_s(Field.BEAT_NS) < PATIENCE_S
    assert 0 <= stamps.age_s(Field.LEASE_NS) < PATIENCE_S
    stamps[Field.BEAT_NS] -= 3_000 * 10**9
    assert 3_000 <= stamps.age_s(Field.BEAT_NS) < 3_000 + PATIENCE_S


def test_nobody_else_reads_the_stamps(tmp_path):
    Stamps.create(tmp_path / "run", "worker-0", os.getpid())
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


def test_known_stamps_are_kept_and_unfinished_ones_not_seen(tmp_path):
    Stamps.create(tmp_path, "worker-0", os.getpid())
    known = Stamps.open_all(tmp_path, {})
    (tmp_path / ".worker-1").write_bytes(b"half")
    Stamps.create(tmp_path, "worker-2", os.getpid())
    found = Stamps.open_all(tmp_path, known)
    assert sorted(found) == ["worker-0", "worker-2"]
    assert found["worker-0"] is known["worker-0"]


def test_the_stamps_of_a_dead_worker_go(tmp_path, sleeper):
    Stamps.create(tmp_path, "worker-0", sleeper.pid)
    known = Stamps.open_all(tmp_path, {})
    assert list(known) == ["worker-0"]
    sleeper.kill()
    sleeper.wait()
    assert Stamps.open_all(tmp_path, known) == Stamps.open_all(tmp_path, {}) == {}
    assert not list(tmp_path.iterdir())


def test_another_process_with_the_pid_of_a_dead_worker_is_not_taken_for_it(tmp_path):
    stamps = Stamps.create(tmp_path, "worker-0", os.getpid())
    assert stamps.process().pid == os.getpid()
    stamps[Field.STARTED] -= 1  # as if the pid had been another process' before
    assert stamps.process() is None
    assert Stamps.open_all(tmp_path, {}) == {}


def test_a_process_is_seen_running_stopped_and_gone(sleeper):
    found = look(sleeper.pid)
    assert (found.parent, found.session, found.stopped) == (os.getpid(), sleeper.pid, False)
    sleeper.send_signal(signal.SIGSTOP)
    assert soon(lambda: look(sleeper.pid).stopped)
    kill(sleeper.pid)
    assert soon(lambda: look(sleeper.pid) is None)  # a zombie by now
    sleeper.wait()
    assert look(sleeper.pid) is None
    kill(sleeper.pid)


def test_a_name_does_not_hide_a_process():
    """Names hold blanks and brackets, and are cut at 15 bytes, within a character too."""
    rename = "import ctypes, time; ctypes.CDLL(None).prctl(15, {!r}, 0, 0, 0); time.sleep(60)"
    name = ") S 1 (ä".encode() + b"\xc3"
    process = subprocess.Popen([sys.executable, "-S", "-c", rename.format(name)])
    try:
        comm = f"/proc/{process.pid}/comm"
        assert soon(lambda: open(comm, "rb").read() == name + b"\n")  # noqa: PTH123, SIM115
        assert look(process.pid).session == os.getsid(0)
        assert process.pid in session_members({os.getsid(0)})
    finally:
        process.kill()
        process.wait()


def test_the_members_of_a_session_are_found_whatever_their_group():
    forks = "import os, time; os.fork(); os.setpgid(0, 0) if os.getpid() != os.getsid(0) else 0; "
    leader = subprocess.Popen(
        [sys.executable, "-S", "-c", forks + "time.sleep(60)"], start_new_session=True
    )
    assert soon(lambda: len(session_members({leader.pid})) == 2)
    for pid in session_members({leader.pid}):
        kill(pid)
    leader.wait()
    assert soon(lambda: not session_members({leader.pid}))
