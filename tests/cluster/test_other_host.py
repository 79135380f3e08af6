"""A run is asked from another host of its cluster, and from beyond: alive, orphaned, dead."""

import json
import os
import re
import shutil
from pathlib import Path

import hosts as real_hosts
import psutil
import pytest
from place import SHORT, Place, until

from remesh.actors.history.journal_reading import read_history
from remesh.orchestrator.accounts.view import view_of

pytestmark = pytest.mark.usefixtures("namespaces")

STEPS = 100_000  # more than it comes to, however quick they are
LONG_AGO = (1.0, 1.0)


class TwoHosts:
    """A run that was submitted on the second host, and commands on it and beyond."""

    def __init__(self, hosts, root):
        self.hosts = hosts
        environment = {**hosts.environment(), "RAY_API_SERVER_ADDRESS": hosts.job_server}
        self.other = Place(root, environment, hosts.prefix(root, host=1))
        self.beyond = Place(root, environment, hosts.prefix(root, host=1, hidden=True))
        self.folder = root / "runs" / "far"

    def status(self, place, *args):
        told = place.remesh("status", *args, "--json")
        assert told.code == 0, told.err
        return json.loads(told.out)

    def trains(self):
        """By its journal: a command for each look would cost a second of a processor."""
        starts = read_history(self.folder).starts
        return starts and view_of(starts[-1].replay()).step > 2

    def row(self, place):
        told = place.remesh("ls", "--json")
        assert told.code == 0, told.err
        (row,) = json.loads(told.out)
        return row

    def lose_the_driver(self):
        argv = ["remesh.cli", "drive"]
        for process in psutil.process_iter(["cmdline"]):
            if (process.info["cmdline"] or [])[-2:] == argv:
                process.kill()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    hosts = real_hosts.Hosts.start(2, job_server=True)
    try:
        two = TwoHosts(hosts, tmp_path_factory.mktemp("two"))
        until(lambda: two.other.remesh("ls").code == 0, "the job server")
        submitted = two.other.remesh(
            "submit", SHORT, "--id", "far", "--set", f"train.steps={STEPS}",
            "--set", "checkpoint.dir=runs/far",
        )  # fmt: skip
        assert submitted.code == 0, submitted.err
        until(two.folder.joinpath("run.json").exists, "the controller is there")
        until(two.trains, "it trains")
        yield two
    finally:
        hosts.close()


def test_a_live_run_answers_on_every_host_and_beyond(two):
    """user 3: status called it gone, scale ended with code 4."""
    assert two.status(two.other, two.folder)["phase"] == "running"
    scaled = two.other.remesh("scale", two.folder, "--nodes", "2")
    assert (scaled.code, "2 wanted" in scaled.out) == (0, True)
    address = two.hosts.hosts[1].address
    drained = two.beyond.remesh(
        "drain", address, "--run", two.folder, "--address", two.hosts.job_server
    )
    assert (drained.code, "is leaving" in drained.out) == (0, True), drained.err
    for fresh in ((), ("--fresh",)):
        again = two.other.remesh(
            "run", SHORT, "--address", two.hosts.address, "--set", f"train.steps={STEPS}",
            "--set", "checkpoint.dir=runs/far", *fresh,
        )  # fmt: skip
        assert (again.code, "is in use by" in again.err) == (2, True)
    row = two.row(two.beyond)
    assert (row["status"], row["run"], row["steps"]) == ("running", "running", STEPS)


def test_one_that_is_cut_off_is_not_gone(two):
    """user 3"""
    away = two.hosts.hosts[1]
    two.hosts.cut(away)
    try:
        status = two.status(two.other, two.folder)
        scaled = two.other.remesh("scale", two.folder, "--nodes", "1")
    finally:
        two.hosts.heal(away)
    assert status["phase"] == "unreachable"
    assert re.search(r"cannot be reached from here, last word \d+ s ago", status["reason"])
    assert scaled.code == 4


def test_a_dead_run_is_gone_on_every_host(two):
    """user 3: what a crashed cluster leaves is the folder of a live one, and silence."""
    dead = two.folder.with_name("dead")
    shutil.copytree(two.folder, dead)
    values = json.loads((dead / "run.json").read_text())
    (dead / "run.json").write_text(json.dumps(values | {"port": 9}))
    for file in (dead / "run.json", *dead.glob("journal/*")):
        os.utime(file, LONG_AGO)
    assert two.status(two.other, dead)["phase"] == "interrupted"
    assert two.other.remesh("scale", dead, "--nodes", "1").code == 2
    stopped = two.other.remesh("stop", dead)
    assert (stopped.code, "is not alive: interrupted" in stopped.err) == (0, True), stopped.err


def test_an_orphan_is_told_and_stopped_from_beyond(two):
    """user 2: stop said "far stopped" and 0, and it trained on."""
    two.lose_the_driver()
    row = until(lambda: (row := two.row(two.beyond))["status"] == "failed" and row, "it ends")
    assert row["run"] == "orphaned"
    assert "attempt 2" in two.beyond.remesh("resume", "far").err  # which has not taken it up yet
    stopped = two.beyond.remesh("stop", "far")
    saved_at = int(re.search(r"stopped by the user; saved at step (\d+)", stopped.err)[1])
    assert stopped.code == 0
    address = ("--address", two.hosts.job_server)
    assert two.status(two.beyond, "far", *address)["phase"] == "stopped"
    assert list(Path(two.folder).glob(f"step-{saved_at:08d}.gen-*/manifest.json"))
    assert two.row(two.beyond)["run"] == "over"
