"""A run that is stopped, killed or started twice loses nothing and leaves nothing behind."""

import json
import re
import signal
from pathlib import Path

import psutil
import pytest
from live_run import LiveRun
from place import SHORT, SLOWLY
from waiting import PATIENCE_S

from remesh.actors.run.folder import RunFolder

LONG = ("--set", "train.steps=5000", *SLOWLY)


def shared_memory(run_id):
    """What the machine has of this run; others may be on it too."""
    return sorted(path.name for path in Path("/dev/shm").glob(f"remesh-{run_id}-*"))


def id_of(run_dir):
    return RunFolder(run_dir).contact().run


def everything_of(command):
    return [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]


def start_and_wait(place, run_dir, step, *args):
    """A command that is far from its end, and the status of its run at this step."""
    command = place.start("run", SHORT, "--set", f"checkpoint.dir={run_dir}", *args, *LONG)
    return command, LiveRun(command, RunFolder(run_dir)).reaches(step)


def resume(place, run_dir, *args):
    return place.run(SHORT, "--set", f"checkpoint.dir={run_dir}", *args)


def assert_same_curve(outcome, undisturbed):
    assert outcome.code == 0, outcome.err + outcome.out
    assert outcome.report["losses"] == undisturbed["losses"]
    assert outcome.report["samples"] == undisturbed["samples"]


def test_the_loss_falls(short_undisturbed, curve):
    losses = short_undisturbed["losses"]
    assert losses[0] > 5.0
    assert sum(losses[-10:]) / 10 < 3.0
    assert len(short_undisturbed["generations"]) == 1
    curve.assert_same_bits(short_undisturbed)


@pytest.fixture(scope="module")
def stopped(place):
    """A run of its own cluster that was stopped by Ctrl-C: its folder and how the command ended.

    With vaults, so that there is something to leave in shared memory.
    """
    run_dir = place.root / "runs" / "stopped"
    command, _ = start_and_wait(place, run_dir, 20, "--set", "checkpoint.snapshot_every=1")
    processes, run_id = everything_of(command), id_of(run_dir)
    assert len(processes) > 10
    assert shared_memory(run_id)
    command.send_signal(signal.SIGINT)
    outcome = place.finish(command)
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    return run_dir, outcome, alive, shared_memory(run_id)


def test_ctrl_c_saves_at_a_step_boundary_and_leaves_nothing(stopped):
    run_dir, outcome, alive, memory = stopped
    assert outcome.code == 130, outcome.err + outcome.out
    saved_at = int(re.search(r"stopped by the user; saved at step (\d+)", outcome.out)[1])
    assert list(run_dir.glob(f"step-{saved_at:08d}.gen-*/manifest.json"))
    assert alive == []
    assert memory == []
    assert not (run_dir / "run.json").exists()


def test_a_finished_run_says_so_and_changes_nothing(cluster_place, short_undisturbed):
    run_dir = cluster_place.root / "runs" / "short"
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*.safetensors")}
    outcome = resume(cluster_place, run_dir)
    assert "holds all 80 steps already" in outcome.out
    assert_same_curve(outcome, short_undisturbed)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*.safetensors")} == before


def test_a_branch_changes_on_its_way_and_goes_back_to_the_same_curve(
    cluster, cluster_place, short_undisturbed
):
    """user 4, inputs B1."""
    place, run_dir = cluster_place, cluster_place.root / "runs" / "branch"
    branched = place.remesh("branch", place.root / "runs" / "short" / "60", "--as", "branch")
    assert branched.code == 0, branched.err
    shared = ("--address", cluster.address, "--set", "train.steps=70")
    other = ("--set", "train.lr=0.001", "--set", 'data.skip=["62"]')
    changed = resume(place, run_dir, *shared, *other)
    back = resume(place, run_dir, *shared, "--from-step", 60)
    told = [outcome.report["samples"] for outcome in (changed, back)]
    proven = {"expected": 120, "consumed": 120, "lost": 0, "repeated": 0}
    assert [{key: one[key] for key in proven} for one in told] == [proven, proven]
    assert "from step 61 on: train.lr 0.003 -> 0.001" in changed.out
    losses = [outcome.report["losses"] for outcome in (changed, back)]
    assert losses[1] == [None] * 60 + short_undisturbed["losses"][60:70]
    assert losses[0][:61] == losses[1][:61]
    assert all(a != b for a, b in zip(losses[0][61:], losses[1][61:], strict=True))
    assert "back to step-00000060" in back.out
    status = json.loads(place.remesh("status", run_dir, "--json").out)
    assert status["amendments"] == []
    assert status["origin"].startswith(f"{place.root}/runs/short/step-00000060.gen-")


def test_kill_9_leaves_nothing_and_the_run_goes_on(stopped, place, cluster, cluster_place, curve):
    """So does the one that was stopped before: three clusters, one curve."""
    run_dir, *_ = stopped
    command, _ = start_and_wait(place, run_dir, 45)
    processes, run_id = everything_of(command), id_of(run_dir)
    folder = Path(processes[1].cmdline()[-1])
    assert folder.name.startswith("remesh-")
    command.kill()
    command.wait()
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert alive == []
    assert shared_memory(run_id) == []
    assert not folder.exists()
    status = json.loads(cluster_place.remesh("status", run_dir, "--json").out)
    assert status["phase"] == "interrupted"
    rest = ("--set", f"train.steps={status['step'] + 20}")
    outcome = resume(cluster_place, run_dir, "--address", cluster.address, *rest)
    assert outcome.code == 0, outcome.err + outcome.out
    curve.assert_same_bits(outcome.report)
    assert len(outcome.report["generations"]) == 3


def test_kill_9_on_a_cluster_that_stays_ends_the_run_by_its_lease(cluster, cluster_place):
    run_dir = cluster_place.root / "runs" / "leased"
    quick = ("--set", "elastic.patience_s=0.2")
    command, status = start_and_wait(
        cluster_place, run_dir, 5, "--address", cluster.address, *quick
    )
    pids = [worker["pid"] for worker in status["workers"] if worker["pid"]]
    processes = [psutil.Process(pid) for pid in (RunFolder(run_dir).contact().pid, *pids)]
    command.kill()
    command.wait()
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert alive == []
    assert not (run_dir / "run.json").exists()
    assert list(run_dir.glob("step-*/manifest.json"))


def test_a_second_start_on_a_folder_in_use_is_refused(cluster, cluster_place):
    """The first one goes on unheard and ends saved (user 4b, inputs B2): its terminal is lost."""
    run_dir = cluster_place.root / "runs" / "busy"
    rare = ("--set", "checkpoint.every=5000", "--address", cluster.address)
    command, _ = start_and_wait(cluster_place, run_dir, 5, *rare)
    try:
        command.stdout.close()
        second = resume(cluster_place, run_dir, *rare, "--set", "train.steps=5000")
        status = cluster_place.remesh("status", run_dir)
        stacks = cluster_place.remesh("stacks", run_dir)
    finally:
        command.send_signal(signal.SIGHUP)
        outcome = cluster_place.finish(command)
    assert (second.code, outcome.code) == (2, 129)
    assert list(run_dir.glob("step-*/manifest.json"))
    assert "is in use by" in second.err
    assert "running" in status.out
    assert "rank 0, on 127.0.0." in stacks.out  # user 12
    assert "Trainer.run" in stacks.out


def test_a_crash_loop_ends_after_one_failure_more_than_allowed(cluster, cluster_place):
    run_dir = cluster_place.root / "runs" / "loop"
    kills = [word for step in (5, 7, 9, 11) for word in ("--kill", f"worker@{step}")]
    outcome = resume(
        cluster_place, run_dir, "--address", cluster.address, *kills,
        "--set", "elastic.max_failures=2",
    )  # fmt: skip
    assert outcome.code == 3, outcome.err + outcome.out
    assert "3 failures, more than elastic.max_failures=2" in outcome.out
    reasons = [life["reason"] for life in outcome.report["generations"]]
    assert sum("was lost" in reason for reason in reasons) == 2, reasons
