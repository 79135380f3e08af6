"""On hosts with their own addresses: one joins, crashes, drains, is cut off; no bit changes."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from place import SHORT, SLOWLY, Place, until

from remesh.actors.history.journal_reading import read_history
from remesh.actors.node.processes import look, processes
from remesh.orchestrator.accounts.view import view_of

LOOK_S = 0.2  # a look reads the journal from its start
EARLY = 10
AFTER = 5
TRAINS_LIMIT_S = 120
GONE_LIMIT_S = 2.0
MANY_STEPS = 5000
PATIENCE_S = 0.2
LEASE_S = 40 * PATIENCE_S
SLACK_S = 1.0  # until a process that ends itself is gone, on busy cores

OWNER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from hosts import Hosts
from place import until

hosts = Hosts()
host = hosts.join_at("10.77.0.99:1")
init = until(lambda: host.init, 10, "a first process")
print(hosts.folder, hosts.supervisor.pid, hosts.switch, host.holder, host.node, init, flush=True)
time.sleep(600)
"""


class Run:
    """A run of the short job that is driven from the head, seen through its journal."""

    def __init__(self, hosts, place, name, *settings):
        self._place = place
        self.folder = place.root / "runs" / name
        self._report = place.root / f"{name}.json"
        self._process = place.start(
            "run", SHORT, "--address", hosts.address, "--report", self._report,
            "--set", f"train.steps={MANY_STEPS}",
            "--set", f"checkpoint.dir={self.folder}", *settings, *SLOWLY,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def trains(self, *, members, from_step=EARLY, limit_s=TRAINS_LIMIT_S):
        """The run's view, once a mesh of so many members has trained up to this step."""

        def found():
            time.sleep(LOOK_S)
            assert self._process.poll() is None, self._process.communicate()
            journals = read_history(self.folder).starts
            view = view_of(journals[-1].replay()) if journals else None
            ranks = sum(worker.rank is not None for worker in view.workers) if view else 0
            trains = view and view.phase == "running" and view.step >= from_step
            return view if trains and ranks == members else None

        return until(found, limit_s, f"{members} members train")

    def stop(self):
        self._process.send_signal(signal.SIGINT)
        outcome = self._place.finish(self._process, self._report)
        assert outcome.code == 130, outcome.err + outcome.out
        return outcome.report

    def files_of(self, generation, rank):
        """When each file of a rank was written: its parts of the checkpoints."""
        files = self.folder.glob(f"step-*.gen-{generation}.start-*/rank-{rank}-of-*")
        return {file: file.stat().st_mtime_ns for file in files}


@pytest.fixture(scope="module")
def place(hosts, tmp_path_factory):
    root = tmp_path_factory.mktemp("hosts")
    return Place(root, hosts.environment(), hosts.prefix(root))


@pytest.fixture(scope="module")
def joined(hosts, place):
    """The report of a run that a third host joins, and what its workers listened at then.

    Slow links leave the cores to the host that joins.
    """
    hosts.stand(2)
    hosts.slow("20mbit")
    with Run(hosts, place, "joined") as run:
        run.trains(members=2, from_step=1)
        hosts.join()
        grown = run.trains(members=3)
        hosts.fast()
        listeners = hosts.worker_listeners()
        run.trains(members=3, from_step=grown.step + AFTER)
        return run.stop(), listeners


def test_a_host_that_joins_is_taken_in(joined, curve):
    report, _ = joined
    assert [life["layout"] for life in report["generations"]] == ["dp=2", "dp=3"]
    assert [life["lost_steps"] for life in report["generations"]] == [0, 0]
    curve.assert_same_bits(report)


def test_a_crashed_host_is_done_without(hosts, place, curve):
    hosts.stand(3)
    with Run(hosts, place, "crashed") as run:
        before = run.trains(members=3)
        hosts.crash(hosts.up[-1])
        run.trains(members=2, from_step=before.step + AFTER)
        report = run.stop()
    assert report["generations"][-1]["layout"] == "dp=2"
    curve.assert_same_bits(report)


def test_a_host_that_drains_is_done_without_and_costs_no_step(hosts, place, curve):
    hosts.stand(3)
    with Run(hosts, place, "drained") as run:
        before = run.trains(members=3)
        hosts.drain(hosts.up[-1])
        run.trains(members=2, from_step=before.step + AFTER)
        report = run.stop()
    lives = report["generations"]
    assert [life["layout"] for life in lives] == ["dp=3", "dp=2"]
    assert [(life["lost_steps"], life["died_at_s"]) for life in lives] == [(0, None)] * 2
    assert "doing without" in lives[1]["reason"]
    curve.assert_same_bits(report)


@pytest.mark.usefixtures("namespaces")
def test_a_host_that_was_cut_off_and_comes_back_disturbs_nothing(hosts, place, curve):
    """Its ranks end within their lease, though by then they can reach the others again."""
    hosts.stand(3)
    patience = f"elastic.patience_s={PATIENCE_S}"
    with Run(hosts, place, "cut", "--set", patience) as run:
        before = run.trains(members=3)
        away = hosts.up[-1]
        old = hosts.workers(away)
        [rank] = [w.rank for w in before.workers if w.node.startswith(f"{away.address}-")]
        hosts.cut(away)
        cut_s = time.monotonic()
        after = run.trains(members=2, from_step=before.step)
        written = run.files_of(before.generation, rank)
        healed = run.trains(members=2, from_step=after.step + AFTER)
        hosts.heal(away)
        until(
            lambda: not any(map(look, old)),
            cut_s + LEASE_S + SLACK_S - time.monotonic(),
            "they end",
        )
        run.trains(members=2, from_step=healed.step + AFTER)
        report = run.stop()
    assert old
    assert run.files_of(before.generation, rank).items() <= written.items()
    curve.assert_same_bits(report)


@pytest.mark.usefixtures("namespaces")
def test_names_that_resolve_to_loopback_are_not_advertised(joined):
    report, listeners = joined
    nodes = {member["node"] for life in report["generations"] for member in life["members"]}
    assert {node.partition("-")[0] for node in nodes} == set(listeners)
    for address, heard in listeners.items():
        assert address in heard
        assert not [other for other in heard if other.startswith("127.")]


@pytest.mark.usefixtures("namespaces")
def test_hosts_are_gone_with_their_owner():
    here = str(Path(__file__).parent)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, here], stdout=subprocess.PIPE, text=True)
    folder, *pids = owner.stdout.readline().split()
    made = {network_of(pid) for pid in pids} - {network_of("self")}
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until(lambda: not any(look(int(pid)) for pid in pids), GONE_LIMIT_S, "no process is left")
    until(lambda: not Path(folder).exists(), GONE_LIMIT_S, "no file is left")
    assert len(made) == 2
    assert not made & {network_of(found.pid) for found in processes()}


def network_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").readlink()
