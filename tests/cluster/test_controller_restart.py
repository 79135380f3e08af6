"""A controller that is killed takes over from itself: the workers train on, and no step is lost."""

import os
import shutil
import signal

import psutil
import pytest
from place import SHORT, until

from remesh.actors.run.contact import ask
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.status import read_events, read_status

BACK = "the controller is back"


class Watched:
    """A run whose processes the test kills, while a command drives it."""

    def __init__(self, place, cluster, name, steps):
        self.steps = steps
        self.folder = RunFolder(place.root / "runs" / name)
        self.report = place.root / f"{name}.json"
        self.place = place
        self.command = place.start(
            "run", SHORT, "--address", cluster.address, "--report", self.report,
            "--set", "metrics.port=0", "--set", f"checkpoint.dir={self.folder.path}",
            "--set", f"train.steps={steps}",
        )  # fmt: skip

    def status(self):
        """What the live controller answers, None in between."""
        contact = self.folder.contact()
        return contact and ask(contact, "/status")

    def reaches(self, step):
        def reached():
            assert self.command.poll() is None
            status = self.status()
            return status and status["step"] >= step and status

        return until(reached, 60, f"step {step}")

    def controller(self):
        return self.folder.contact().pid

    def is_back(self, after):
        """Waits for another controller than the one with this pid."""
        until(lambda: self.controller() != after and self.status(), 20, "another controller")

    def finish(self):
        outcome = self.place.finish(self.command, self.report, limit_s=90)
        assert outcome.code == 0, outcome.err + outcome.out
        assert len(outcome.report["losses"]) == self.steps
        return outcome


def stays(contact):
    """How clients of a run reach whatever controller it has."""
    return contact.host, contact.port, contact.token, contact.metrics_port


def pids_of(status):
    return {worker["worker"]: worker["pid"] for worker in status["workers"] if worker["pid"]}


@pytest.fixture(scope="module")
def twice(cluster, cluster_place, curve):
    """A run whose controller was killed twice: the run, its outcome, its workers before."""
    run = Watched(cluster_place, cluster, "headless", 200)
    status = run.reaches(10)
    pids, before = pids_of(status), run.folder.contact()
    for _ in range(2):
        killed = run.controller()
        os.kill(killed, signal.SIGKILL)
        run.is_back(after=killed)
        assert pids_of(run.status()) == pids
        assert stays(run.folder.contact()) == stays(before)
        run.reaches(run.status()["step"] + 5)
    outcome = run.finish()
    curve.assert_same_bits(outcome.report)
    return run, outcome, pids


def test_the_workers_of_a_killed_controller_train_on_as_one_generation(twice):
    _, outcome, pids = twice
    (generation,) = outcome.report["generations"]
    assert {member["worker"]: member["pid"] for member in generation["members"]} == pids
    assert generation["lost_steps"] == 0


def test_the_command_and_the_journal_tell_each_takeover_once(twice):
    run, outcome, _ = twice
    told = [entry["text"] for entry in read_events(run.folder.path)]
    assert sum(BACK in text for text in told) == outcome.out.count(BACK) == 2
    saved = [text for text in told if text.startswith("checkpoint at")]
    assert len(saved) == run.steps // 20
    assert all(outcome.out.count(text) == 1 for text in saved)
    assert read_status(run.folder.path)["step"] == run.steps


@pytest.mark.parametrize("controller_first", [True, False])
def test_killed_while_a_worker_is_lost_the_recovery_is_carried_on(
    cluster, cluster_place, curve, controller_first
):
    run = Watched(cluster_place, cluster, f"both-{controller_first}", 100)
    pids = pids_of(run.reaches(10))
    controller, worker = run.controller(), pids["worker-1"]
    for pid in (controller, worker) if controller_first else (worker, controller):
        os.kill(pid, signal.SIGKILL)
    run.is_back(after=controller)
    outcome = run.finish()
    curve.assert_same_bits(outcome.report)
    first, second = outcome.report["generations"][:2]
    assert second["died_at_s"] is not None
    kept = {member["worker"] for member in second["members"]} & set(pids)
    assert kept >= set(pids) - {"worker-1"}
    assert {m["pid"] for m in second["members"] if m["worker"] in kept} <= set(pids.values())
    assert second["lost_steps"] == 0, (first, second)


def test_a_controller_that_is_back_without_its_journal_says_so_and_leaves_nothing(
    cluster, cluster_place
):
    """security B5: it took itself for a first one, and its agent, vault and workers stayed."""
    run = Watched(cluster_place, cluster, "forgetful", 2000)
    pids = pids_of(run.reaches(5))
    contact = run.folder.contact()
    shutil.rmtree(run.folder.path / "journal")
    os.kill(contact.pid, signal.SIGKILL)
    outcome = cluster_place.finish(run.command, limit_s=60)
    assert outcome.code == 3, outcome.err + outcome.out
    last = outcome.out.splitlines()[-1]
    assert "000001.jsonl is gone or empty" in last
    assert "the same command resumes at the last checkpoint" in last
    until(lambda: not any(map(psutil.pid_exists, pids.values())), 20, "no worker left")
    assert run.folder.contact() is None
