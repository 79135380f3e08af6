"""On hosts with their own addresses: one is cut off and comes back, another one crashes.

No bit changes with that. How others join and drain is in test_join_leave.py and test_schedules.py.
"""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from place import SHORT, SLOWLY, Place, until

from remesh.actors.history.journal_reading import read_history
from remesh.actors.node.processes import look, processes
from remesh.orchestrator.accounts.view import view_of

LOOK_S = 0.2  # a look reads the journal from its start
EARLY = 10
AFTER = 5
MANY_STEPS = 5000
PATIENCE_S = 0.2

OWNER = """
import sys, time
sys.path[:0] = sys.argv[1:]
from hosts import Hosts
from place import until

hosts = Hosts()
host = hosts.join_at("10.77.0.99:1")
init = until(lambda: host.init, "a first process")
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

    def trains(self, *, members, from_step=EARLY):
        """The run's view, once a mesh of so many members has trained up to this step."""

        def found():
            time.sleep(LOOK_S)
            assert self._process.poll() is None, self._process.communicate()
            journals = read_history(self.folder).starts
            view = view_of(journals[-1].replay()) if journals else None
            ranks = sum(worker.rank is not None for worker in view.workers) if view else 0
            trains = view and view.phase == "running" and view.step >= from_step
            return view if trains and ranks == members else None

        return until(found, f"{members} members train")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """In this `generation` a host was cut off, which had the `rank` and these processes.

    `written` are its files by then, `heard` the addresses at which each host's workers listened.
    """

    run: Run
    report: dict
    generation: int
    rank: int
    pids: list
    written: dict
    heard: dict


@pytest.fixture(scope="module")
def cut(namespaces, hosts, place):  # noqa: ARG001 - or it is not for this machine
    """A run of three hosts, one of which is cut off, and comes back while the others train on.

    Its ranks end with their lease, though by then they can reach the others again.
    """
    hosts.stand(3)
    patience = f"elastic.patience_s={PATIENCE_S}"
    with Run(hosts, place, "cut", "--set", patience) as run:
        before = run.trains(members=3)
        heard = hosts.worker_listeners()
        away = hosts.up[-1]
        old = hosts.workers(away)
        [rank] = [w.rank for w in before.workers if w.node.startswith(f"{away.address}-")]
        hosts.cut(away)
        after = run.trains(members=2, from_step=before.step)
        written = run.files_of(before.generation, rank)
        healed = run.trains(members=2, from_step=after.step + AFTER)
        hosts.heal(away)
        until(lambda: not any(map(look, old)), "they end")
        run.trains(members=2, from_step=healed.step + AFTER)
        report = run.stop()
    return CutOff(
        run=run, report=report, generation=before.generation, rank=rank, pids=old,
        written=written, heard=heard,
    )  # fmt: skip


def test_a_host_that_was_cut_off_and_comes_back_disturbs_nothing(cut, curve):
    assert cut.pids
    assert max(life["lost_steps"] for life in cut.report["generations"]) <= 1
    assert cut.run.files_of(cut.generation, cut.rank).items() <= cut.written.items()
    curve.assert_same_bits(cut.report)


def test_names_that_resolve_to_loopback_are_not_advertised(cut):
    lives = {life["generation"]: life for life in cut.report["generations"]}
    nodes = {member["node"] for member in lives[cut.generation]["members"]}
    assert {node.partition("-")[0] for node in nodes} == set(cut.heard)
    for address, heard in cut.heard.items():
        assert address in heard
        assert not [other for other in heard if other.startswith("127.")]


def test_a_host_whose_kernel_outlives_its_processes_is_not_waited_for(hosts, place):
    """Nobody is left there to tell, but connections to it are refused."""
    hosts.stand(3)
    with Run(hosts, place, "crashed") as run:
        before = run.trains(members=3)
        hosts.crash(hosts.up[-1])
        after = run.trains(members=2, from_step=before.step + AFTER)
        report = run.stop()
    [life] = [life for life in report["generations"] if life["generation"] == before.generation + 1]
    assert life["generation"] == after.generation
    # Whichever is heard first: Ray's word, or the kernel's.
    assert "its agent died" in life["reason"] or "are refused" in life["reason"]
    assert life["lost_steps"] <= 1


@pytest.mark.usefixtures("namespaces")
def test_hosts_are_gone_with_their_owner():
    here = Path(__file__).parent
    rooms = (here, here.parent / "support")
    argv = [sys.executable, "-c", OWNER, *map(str, rooms)]
    owner = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    folder, *pids = owner.stdout.readline().split()
    made = {network_of(pid) for pid in pids} - {network_of("self")}
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until(lambda: not any(look(int(pid)) for pid in pids), "no process is left")
    until(lambda: not Path(folder).exists(), "no file is left")
    assert len(made) == 2
    assert not made & {network_of(found.pid) for found in processes()}


def network_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").readlink()
