"""A controller that is killed takes over from itself: the workers train on, and no step is lost."""

import os
import re
import shutil
import signal

import psutil
import pytest
from live_run import LiveRun
from place import SHORT, SLOWLY, until

from remesh.actors.run.folder import RunFolder
from remesh.actors.run.status import read_events, read_status

BACK = "the controller is back"


class Watched(LiveRun):
    """A run whose processes the test kills, while a command drives it."""

    def __init__(self, place, cluster, name, steps, *words):
        self.report = place.root / f"{name}.json"
        self.place = place
        folder = RunFolder(place.root / "runs" / name)
        command = place.start(
            "run", SHORT, "--address", cluster.address, "--report", self.report,
            "--set", "metrics.port=0", "--set", f"checkpoint.dir={folder.path}",
            "--set", f"train.steps={steps}", *words,
        )  # fmt: skip
        super().__init__(command, folder)

    def controller(self):
        return self.folder.contact().pid

    def is_back(self, after):
        """Waits for another controller than the one with this pid."""
        until(lambda: self.controller() != after, "another controller")
        self.status()

    def lose_with_a_worker(self, *, controller_first):
        """Kills both in this order; returns who died, and the pids of all members before.

        Waits until three train again.
        """
        status = self.trains(self.status()["step"])
        pids, (victim, *_) = members_of(status), sorted(members_of(status))
        controller, worker = self.controller(), pids[victim]
        for pid in (controller, worker) if controller_first else (worker, controller):
            os.kill(pid, signal.SIGKILL)
        self.is_back(after=controller)
        self.trains(status["step"] + 3, after=status["generation"])
        return victim, pids

    def trains(self, step, *, after=0):
        """The status once three members have reached this step in a later generation than that."""

        def train(status):
            newer = status["generation"] > after and status["step"] >= step
            return newer and len(members_of(status)) == 3

        return self.status(train, f"three train at step {step}")

    def stop(self):
        self.command.send_signal(signal.SIGINT)
        outcome = self.place.finish(self.command, self.report)
        assert outcome.code == 130, outcome.err + outcome.out
        return outcome


def members_of(status):
    """Pids by the names of the workers that have a rank."""
    return {one["worker"]: one["pid"] for one in status["workers"] if one["rank"] is not None}


def stays(contact):
    """How clients of a run reach whatever controller it has."""
    return contact.host, contact.port, contact.token, contact.metrics_port


def pids_of(status):
    return {worker["worker"]: worker["pid"] for worker in status["workers"] if worker["pid"]}


@pytest.fixture(scope="module")
def killed(pair, pair_place, curve):
    """A run whose controller was killed twice, then together with a worker, in either order.

    The run, its outcome, and the pids of its workers before the first kill, and before each of the
    others by the name of who died.
    """
    snapshots = ("--set", "checkpoint.snapshot_every=auto")
    run = Watched(pair_place, pair, "headless", 5000, *snapshots, *SLOWLY)
    status = run.reaches(5)
    pids, before = pids_of(status), run.folder.contact()
    for _ in range(2):
        controller = run.controller()
        os.kill(controller, signal.SIGKILL)
        run.is_back(after=controller)
        assert pids_of(run.status()) == pids
        assert stays(run.folder.contact()) == stays(before)
        run.reaches(run.status()["step"] + 3)
    struck = [run.lose_with_a_worker(controller_first=first) for first in (True, False)]
    outcome = run.stop()
    curve.assert_same_bits(outcome.report)
    return run, outcome, pids, struck


def test_the_workers_of_a_killed_controller_train_on_as_one_generation(killed):
    _, outcome, pids, _ = killed
    first = outcome.report["generations"][0]
    assert {member["worker"]: member["pid"] for member in first["members"]} == pids
    assert first["lost_steps"] == 0


def test_the_command_and_the_journal_tell_each_takeover_once(killed):
    run, outcome, *_ = killed
    told = [entry["text"] for entry in read_events(run.folder.path)]
    assert sum(BACK in text for text in told) == outcome.out.count(BACK) == 4
    step = read_status(run.folder.path)["step"]
    assert step == len(outcome.report["losses"])
    saved = [text for text in told if text.startswith("checkpoint at")]
    steps = [int(re.search(r"at step (\d+)", text)[1]) for text in saved]
    assert steps == sorted(set(steps))
    assert steps[-1] == step
    assert all(outcome.out.count(text) == 1 for text in saved)


def test_killed_while_a_worker_is_lost_the_recovery_is_carried_on(killed):
    """Whoever of the two dies first."""
    _, outcome, _, struck = killed
    lives = outcome.report["generations"]
    after = [life for life in lives if life["died_at_s"] is not None]
    assert len(after) == len(struck) == 2
    for life, (victim, pids) in zip(after, struck, strict=True):
        own = {member["worker"]: member["pid"] for member in life["members"]}
        others = {worker: pid for worker, pid in pids.items() if worker != victim}
        assert others.items() <= own.items()
        assert victim not in own
        assert life["lost_steps"] == 0


def test_a_controller_that_is_back_without_its_journal_says_so_and_leaves_nothing(
    cluster, cluster_place
):
    """security B5: it took itself for a first one, and its agent, vault and workers stayed."""
    run = Watched(cluster_place, cluster, "forgetful", 2000)
    pids = pids_of(run.reaches(5))
    contact = run.folder.contact()
    os.kill(contact.pid, signal.SIGSTOP)  # or it would begin another journal
    shutil.rmtree(run.folder.path / "journal")
    os.kill(contact.pid, signal.SIGKILL)
    outcome = cluster_place.finish(run.command)
    assert outcome.code == 3, outcome.err + outcome.out
    last = outcome.out.splitlines()[-1]
    assert "000001.jsonl is gone or empty" in last
    assert "the same command resumes at the last checkpoint" in last
    until(lambda: not any(map(psutil.pid_exists, pids.values())), "no worker left")
    assert run.folder.contact() is None
