import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from waiting import PATIENCE_S, soon

from remesh.actors.node.processes import session_members
from remesh.actors.orders import RunSpec
from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.worker.ordered_kills import Faults, died_at_s
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.job.kills import Kill

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def spec_of(*kills):
    return RunSpec(
        run="ab12",
        job=load_job(TINY),
        folder="",
        data_digest="",
        fingerprint={},
        start=1,
        incarnation=1,
        max_members=4,
        kills=kills,
        driver_lease_s=20.0,
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
        faults = Faults(spec=spec, worker=worker, node="node-b", storage=storage)
        faults.fire(step, is_last_rank=role == "last", is_node_victim=role == "victim")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if bystander:
        bystander.append(pid)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def test_the_last_rank_dies_once_at_the_step_and_nobody_else(storage):
    spec = spec_of(Kill(target="worker", step=20))
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
    spec = spec_of(Kill(target="worker", step=1))
    pids = []
    for rank in range(4):
        pid = os.fork()
        if pid == 0:
            faults = Faults(spec=spec, worker=f"worker-{rank}", node="n", storage=storage)
            faults.fire(1, is_last_rank=True, is_node_victim=False)
            os._exit(0)
        pids.append(pid)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert sorted(ends) == [-signal.SIGKILL, 0, 0, 0]
    died = json.loads(storage.get("faults/ab12-0.json"))["died"]
    assert died == f"worker-{ends.index(-signal.SIGKILL)}"


def test_a_node_goes_with_all_processes_of_its_session(storage):
    spec = spec_of(Kill(target="worker", step=20), Kill(target="node", step=40))
    leader = [0]
    assert fired(spec, storage, 40, "last") is None
    assert fired(spec, storage, 40, "victim", bystander=leader) == signal.SIGKILL
    assert soon(lambda: not session_members({leader[-1]}))
    assert died_at_s(spec, storage, "node-b") is not None
    assert died_at_s(spec, storage, "worker-3") is None


def test_two_kills_at_one_step_are_two_deaths(storage):
    spec = spec_of(Kill(target="worker", step=20), Kill(target="worker", step=20))
    deaths = [fired(spec, storage, 20, "last") for _ in range(3)]
    assert deaths == [signal.SIGKILL, signal.SIGKILL, None]


def test_the_next_start_of_a_run_has_its_own_kills(storage):
    kill = Kill(target="worker", step=20)
    assert fired(spec_of(kill), storage, 20, "last") == signal.SIGKILL
    other = RunSpec(**{**{k: getattr(spec_of(kill), k) for k in RunSpec.__slots__}, "run": "cd34"})
    assert died_at_s(other, storage, "worker-3") is None
    assert fired(other, storage, 20, "last") == signal.SIGKILL


def test_a_claim_that_cannot_be_read_tells_nothing(storage):
    spec = spec_of(Kill(target="worker", step=20))
    (storage.root / "faults" / "ab12-0.json").mkdir(parents=True)
    assert died_at_s(spec, storage, "worker-3") is None
