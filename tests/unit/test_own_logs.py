"""The logs of processes: what dies in whatever way lands in them, and they stay small (user 12)."""

import fcntl
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from waiting import soon

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.node.log_carrier import CUT_BYTES, KEPT_BYTES, LogCarrier, prune, read_log
from remesh.actors.node.tracebacks import MAX_BYTES, tail, traceback_of
from remesh.orchestrator.user_errors import UnreachableError

DIVERTED = """
import os, sys
from pathlib import Path
from remesh.actors.node.own_log import divert
divert(Path(sys.argv[1]), "worker-3")
print("before it dies", flush=True)
"""
THREADS = """
from functools import partial
from remesh.actors.node.thread_ends import end_with_own_threads
from remesh.parallel.threads import heard_thread
end_with_own_threads(lambda name, error: print(name, repr(error), flush=True))
import threading, time
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "private"


@pytest.fixture
def carrier(folder, tmp_path):
    return LogCarrier(folder, tmp_path / "run")


@pytest.fixture
def writing(folder):
    """Starts a process that has such a log; it runs until it is killed if it has no end."""
    begun = []

    def start(code):
        process = subprocess.Popen(
            [sys.executable, "-c", DIVERTED + code, str(folder)],
            stdin=subprocess.PIPE,  # nothing comes, and no end of it either
            stdout=subprocess.PIPE,
        )
        begun.append(process)
        soon(lambda: (folder / "worker-3.log").exists() or process.poll() is not None)
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def carried(tmp_path):
    return read_log(tmp_path / "run" / "logs", "worker-3.log").decode()


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("raise ValueError('odd')", "ValueError: odd"),
        ("os.abort()", "Fatal Python error: Aborted"),
        ("import ctypes; ctypes.string_at(0)", "Fatal Python error: Segmentation fault"),
        ("os.system('echo of a child')", "of a child"),
        ("os.write(2, b'from C')", "from C"),
    ],
)
def test_whatever_is_written_as_a_process_dies_is_carried_and_then_cleared(
    writing, carrier, folder, tmp_path, end, words
):
    writing(end).wait()
    carrier.carry()
    assert "before it dies" in carried(tmp_path)
    assert words in carried(tmp_path)
    assert list(folder.iterdir()) == []


def test_a_process_that_lives_keeps_its_log_and_each_part_is_carried_once(
    writing, carrier, folder, tmp_path
):
    process = writing("sys.stdin.read()")
    soon((folder / "worker-3.log").read_text)
    for _ in range(2):
        carrier.carry()
    assert carried(tmp_path).count("before it dies") == 1
    assert (folder / "worker-3.log").exists()
    process.kill()
    process.wait()
    carrier.carry()
    assert carried(tmp_path).count("before it dies") == 1


def private_log(folder, text):
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "worker-3.log"
    with path.open("a") as file:
        file.write(text)
    return path


def test_a_log_keeps_its_end_on_both_sides(carrier, folder, tmp_path):
    with private_log(folder, "").open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # as its process does
        for number in range(9):
            path = private_log(folder, f"{number}" * (KEPT_BYTES - 1) + "\n")
            carrier.carry()
            assert path.stat().st_size <= CUT_BYTES
    assert carried(tmp_path).endswith("7\n" + "8" * (KEPT_BYTES - 1) + "\n")
    assert (tmp_path / "run" / "logs" / "worker-3.log").stat().st_size <= 2 * KEPT_BYTES


def test_a_log_that_grows_on_the_node_is_cut_there(writing, carrier, folder, tmp_path):
    writing(f"os.write(1, b'x' * {CUT_BYTES} + b'the end'); sys.stdin.read()")
    log = folder / "worker-3.log"
    soon(lambda: log.stat().st_size > CUT_BYTES)
    carrier.carry()
    assert log.stat().st_size == 0
    assert carried(tmp_path).endswith("the end")


def test_nothing_is_carried_through_a_link(carrier, folder, tmp_path):
    private_log(folder, "secret\n")
    other = tmp_path / "other"
    other.write_text("")
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-3.log").symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"):
        carrier.carry()
    assert other.read_text() == ""


def test_only_logs_are_carried(carrier, folder, tmp_path):
    private_log(folder, "")
    for name in ("worker-3.stacks", ".worker-4.log", "notes.log", "worker-x.log"):
        (folder / name).write_text("no log")
    carrier.carry()
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_carried_is_said_and_carried_later(carrier, folder, tmp_path, capfd):
    private_log(folder, "words\n")
    (tmp_path / "run").write_text("a file in its place")
    for _ in range(2):
        carrier._round(prunes=False)
    assert capfd.readouterr().out.count("logs are not carried") == 1
    (tmp_path / "run").unlink()
    carrier._round(prunes=False)
    assert "words" in carried(tmp_path)


def test_the_logs_of_a_run_have_a_bound_and_the_oldest_go_first(tmp_path):
    for number in range(5):
        path = tmp_path / f"worker-{number}.log"
        path.write_bytes(b"x" * 5000)
        os.utime(path, (number, number))
    (tmp_path / "mine.log").write_bytes(b"x" * 50_000)
    prune(tmp_path, 11_000)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "mine.log",
        "worker-3.log",
        "worker-4.log",
    ]


def test_a_thread_of_ours_that_dies_ends_the_process_with_its_last_word(writing, carrier, tmp_path):
    process = writing(
        THREADS + "heard_thread(partial(int, 'x'), name='odd').start(); time.sleep(60)"
    )
    assert process.wait() == 1
    carrier.carry()
    assert "remesh odd ValueError(" in carried(tmp_path)
    assert "Traceback" in carried(tmp_path)


def test_a_thread_of_a_library_ends_nobody_but_itself(writing, carrier, tmp_path):
    process = writing(
        THREADS + "t = threading.Thread(target=int, args=['x']); t.start(); t.join(); os._exit(7)"
    )
    assert process.wait() == 7
    carrier.carry()
    assert "ValueError" in carried(tmp_path)


def test_a_traceback_has_a_bound_keeps_its_end_and_no_password():
    with pytest.raises(ValueError, match="the end") as raised:
        fail("long " * 2000 + "the end")
    told = traceback_of(raised.value)
    assert len(told.encode()) <= MAX_BYTES
    assert told.startswith("...\n")
    assert told.endswith("the end\n")
    assert "sesame" not in tail("s3://me:sesame@host/x")


def fail(text):
    raise ValueError(text)


def test_a_node_that_has_not_joined_is_told_with_the_last_line_of_its_log(tmp_path):
    """user 16: the run went on without it, and nothing said so."""
    cluster = LocalCluster(token="t", folder=tmp_path, supervisor=SimpleNamespace())
    cluster.sessions, cluster.address = [os.getpid(), os.getpid()], "127.0.0.2:1"
    (tmp_path / "node-1.log").write_text("started\nno room left\n\n")
    cluster.wait_until_joined(lambda: ["127.0.0.2", "127.0.0.3"])
    with pytest.raises(UnreachableError, match=r"node 2 of 2 has not joined .*: no room left"):
        cluster.wait_until_joined(lambda: ["127.0.0.2"], limit_s=0.1)
