import json
import os
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from control_values import DID
from waiting import PATIENCE_S, soon

from remesh.actors.node.processes import session_members
from remesh.actors.orders import RunSpec
from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.storage.struck_storage import StruckStorage
from remesh.actors.worker.ordered_faults import ControllerFaults, Faults, StepPace, died_at_s
from remesh.orchestrator.control.words.events import StepsDone
from remesh.orchestrator.control.words.records import StepRecord
from remesh.orchestrator.job.faults_on_order import BEGIN, Moment, parse_fault, parse_kill
from remesh.orchestrator.job.job import load_job
from remesh.parallel.plan.step_result import StepResult

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def asked(text):
    return parse_fault(text) if "=" in text else parse_kill(text)


def spec_of(*texts):
    return RunSpec(
        run="ab12",
        job=load_job(TINY),
        folder="",
        data_digest="",
        fingerprint={},
        start=1,
        incarnation=1,
        max_members=4,
        faults=tuple(map(asked, texts)),
        driver_lease_s=20.0,
    )


def faults_of(spec, storage, worker="worker-3", disk=None):
    disk = disk or StruckStorage(storage)
    return Faults(spec=spec, worker=worker, node="node-b", storage=storage, disk=disk)


def moment(step, role="", operation=BEGIN):
    return Moment(
        generation=1,
        step=step,
        rank=2,
        is_last_rank=role == "last",
        is_node_victim=role == "victim",
        operation=operation,
    )


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path)


def fired(spec, storage, step, role="", *, worker="worker-3", bystander=None):
    """The signal that ended a process of its own session which reached this step, None for none."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if bystander:
            subprocess.Popen(["sleep", "60"])
        faults_of(spec, storage, worker).fire(moment(step, role))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if bystander:
        bystander.append(pid)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def test_the_last_rank_dies_once_at_the_step_and_nobody_else(storage):
    spec = spec_of("worker@20")
    assert fired(spec, storage, 19, "last") is None
    assert fired(spec, storage, 20, "victim") is None
    assert storage.list("") == []
    assert fired(spec, storage, 20, "last") == signal.SIGKILL
    assert fired(spec, storage, 20, "last", worker="worker-2") is None
    (noted,) = (storage.root / "faults").iterdir()
    told_s = noted.stat().st_mtime
    assert died_at_s(spec, storage, "worker-3") == pytest.approx(told_s, abs=PATIENCE_S)
    assert died_at_s(spec, storage, "worker-2") is None


def test_of_two_that_reach_the_step_at_once_one_dies(storage):
    spec = spec_of("worker@1")
    pids = []
    for rank in range(4):
        pid = os.fork()
        if pid == 0:
            faults_of(spec, storage, f"worker-{rank}").fire(moment(1, "last"))
            os._exit(0)
        pids.append(pid)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert sorted(ends) == [-signal.SIGKILL, 0, 0, 0]
    died = json.loads(storage.get("faults/ab12-0.json"))["struck"]
    assert died == f"worker-{ends.index(-signal.SIGKILL)}"


def test_a_node_goes_with_all_processes_of_its_session(storage):
    spec = spec_of("worker@20", "node@40")
    leader = [0]
    assert fired(spec, storage, 40, "last") is None
    assert fired(spec, storage, 40, "victim", bystander=leader) == signal.SIGKILL
    assert soon(lambda: not session_members({leader[-1]}))
    assert died_at_s(spec, storage, "node-b") is not None
    assert died_at_s(spec, storage, "worker-3") is None


def test_two_kills_at_one_step_are_two_deaths(storage):
    spec = spec_of("worker@20", "worker@20")
    deaths = [fired(spec, storage, 20, "last") for _ in range(3)]
    assert deaths == [signal.SIGKILL, signal.SIGKILL, None]


def test_what_cannot_be_claimed_does_not_strike(storage):
    (storage.root / "faults").write_bytes(b"")  # no folder
    assert fired(spec_of("worker@20"), storage, 20, "last") is None


def test_the_next_start_of_a_run_has_its_own_kills(storage):
    kill = "worker@20"
    assert fired(spec_of(kill), storage, 20, "last") == signal.SIGKILL
    other = RunSpec(**{**{k: getattr(spec_of(kill), k) for k in RunSpec.__slots__}, "run": "cd34"})
    assert died_at_s(other, storage, "worker-3") is None
    assert fired(other, storage, 20, "last") == signal.SIGKILL


def test_a_claim_that_cannot_be_read_tells_nothing(storage):
    spec = spec_of("worker@20")
    (storage.root / "faults" / "ab12-0.json").mkdir(parents=True)
    assert died_at_s(spec, storage, "worker-3") is None


def test_a_fault_within_a_step_strikes_before_its_operation(storage):
    faults = faults_of(spec_of("disk-full@step=3,rank=2,operation=vote"), storage)
    assert faults.looks_at_operations
    assert not faults_of(spec_of("kill@step=3"), storage).looks_at_operations
    faults.fire(moment(3))
    faults.fire(moment(3, operation="forward"))
    assert storage.list("faults/") == []
    faults.fire(moment(3, operation="vote"))
    assert storage.list("faults/") == ["faults/ab12-0.json"]


def test_a_full_disk_takes_nothing_and_gives_what_it_has(storage):
    disk = StruckStorage(storage)
    disk.put("a", b"1")
    faults_of(spec_of("disk-full@step=3,rank=2"), storage, disk=disk).fire(moment(3))
    for put in (disk.put, disk.put_if_absent):
        with pytest.raises(OSError, match="No space left on device"):
            put("b", b"2")
    assert disk.get("a") == b"1"
    assert disk.list("") == ["a", "faults/ab12-0.json"]
    disk.fill(0.0)
    disk.put("b", b"2")


def test_storage_that_stands_still_takes_what_is_written_later(storage):
    slept = []
    disk = StruckStorage(storage, sleep=slept.append)
    fault = spec_of("storage-stands-still@step=3,rank=2,for=60")
    faults_of(fault, storage, disk=disk).fire(moment(3))
    disk.put("a", b"1")
    assert len(slept) == 1
    disk.stop(0.0)
    disk.put("b", b"2")
    assert len(slept) == 1
    assert disk.list("") == ["a", "b", "faults/ab12-0.json"]


def test_a_rank_that_loses_the_network_has_no_connection_any_more(storage):
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            faults_of(spec_of("disconnect@step=3,rank=2"), storage).fire(moment(3))
            assert near.recv(1) == far.recv(1) == b""
        again = socket.create_connection(server.getsockname())  # a listener is left alone
        again.close()


def test_a_frozen_process_goes_on_when_its_time_is_over_and_only_then(storage):
    pid = os.fork()
    if pid == 0:
        faults_of(spec_of("freeze@step=3,rank=2,for=0.2"), storage).fire(moment(3))
        os._exit(7)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_rank_that_hangs_lives_on_and_comes_back_if_it_was_given_a_time(storage):
    pid = os.fork()
    if pid == 0:
        faults_of(spec_of("hang@step=3,rank=2"), storage).fire(moment(3))
        os._exit(7)
    assert soon(lambda: storage.list("faults/"))
    assert os.waitpid(pid, os.WNOHANG | os.WUNTRACED) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    briefly = replace(spec_of("hang@step=4,rank=2,for=0.01"), run="cd34")
    faults_of(briefly, storage).fire(moment(4))
    assert len(storage.list("faults/")) == 2


def test_a_slow_rank_waits_for_as_many_steps_as_were_asked_for():
    clock = FakeClock()
    pace = StepPace(now_s=clock.now, sleep=clock.sleep)
    for step in range(1, 7):
        if step == 3:
            pace.slow(3.0, 2)
        pace.keep((1, step))
        clock.now_s += 1.0
    assert clock.slept == [2.0, 2.0]
    pace.slow(3.0, 1, 0.5)
    pace.keep((1, 7))
    assert clock.slept == [2.0, 2.0, 0.5]


def test_what_lies_between_two_meshes_is_no_step():
    clock = FakeClock()
    pace = StepPace(now_s=clock.now, sleep=clock.sleep)
    pace.slow(3.0, 5)
    for step in ((1, 7), (1, 8), (2, 8), (2, 9)):
        pace.keep(step)
        clock.now_s += 1.0 if step != (1, 8) else 60.0
    assert clock.slept == [2.0, 2.0]


class FakeClock:
    def __init__(self):
        self.now_s, self.slept = 0.0, []

    def now(self):
        return self.now_s

    def sleep(self, for_s):
        self.slept.append(for_s)
        self.now_s += for_s


def heard(spec, storage, *steps):
    """How a process ends, or that it stops, which hears of these steps as a controller."""
    did = StepResult(**DID, digest="")
    told = [StepRecord(step=step, did=did, step_s=1.0, ended_s=1.0) for step in steps]
    pid = os.fork()
    if pid == 0:
        faults = ControllerFaults(spec, storage)
        for record in told:
            faults.heard(StepsDone(worker="w", generation=1, records=(record,)))
        os._exit(0)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.waitpid(pid, 0)
        return signal.SIGSTOP
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def test_a_controller_strikes_itself_once_as_it_hears_of_the_step(storage):
    spec = spec_of("kill-controller@step=3", "standstill@step=5,for=0.1")
    assert heard(spec, storage, 1, 2) is None
    assert heard(spec, storage, 4) == signal.SIGKILL
    assert heard(spec, storage, 4) is None
    assert heard(spec, storage, 5) == signal.SIGSTOP
    assert heard(spec, storage, 6) is None
    assert died_at_s(spec, storage, "controller") is None
