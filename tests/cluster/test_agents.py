"""The one actor of a node: what it owns ends with it, and the run goes on without either."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import psutil
import pytest
from curve import assert_whole
from live_run import LiveRun
from place import SHORT, SLOWLY, Place, until

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.history.journal_reading import read_history
from remesh.actors.node.processes import look
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.status import read_events
from remesh.orchestrator.control.journal import read
from remesh.orchestrator.control.words.events import WorkerLost, WorkerStuck

STOPPED = 130
LOW = "its node ran low on memory"

KILL = """
import os, ray
from ray.util import list_named_actors
ray.init(address=os.environ["WHERE"], log_to_driver=False, logging_level="ERROR")
found = [a for a in list_named_actors(all_namespaces=True) if os.environ["WHICH"] in a["name"]]
for actor in found:
    ray.kill(ray.get_actor(actor["name"], actor["namespace"]))
print(len(found))
"""


class AgentRun(LiveRun):
    """A run of the short job on a cluster, seen from outside."""

    def __init__(self, place, cluster, name, *settings, pace=SLOWLY):
        self.place = place
        self.cluster = cluster
        self.report = place.root / f"{name}.json"
        folder = RunFolder(place.root / "runs" / name)
        sets = [f"checkpoint.dir={folder.path}", "train.steps=10000", *settings]
        options = [word for text in sets for word in ("--set", text)]
        command = place.start(
            "run", SHORT, "--address", cluster.address, "--report", self.report, *options, *pace
        )
        super().__init__(command, folder)

    def children(self, warm):
        """The pids of the workers that were forked from this process."""
        pids = [one["pid"] for one in self.status()["workers"] if one["pid"]]
        return {pid for pid in pids if (found := look(pid)) and found.parent == warm.pid}

    def kill_agents(self, node):
        """By Ray, as its memory monitor does it too."""
        which = f"{self.folder.contact().run}-agent-{node}"
        told = {"WHERE": self.cluster.address, "WHICH": which}
        environment = {**self.place.environment, **told}
        argv = [sys.executable, "-c", KILL]
        return subprocess.run(argv, env=environment, check=True, capture_output=True, text=True)

    def stop(self):
        """The report of the run, which is asked to end saved, as by Ctrl-C."""
        self.command.send_signal(signal.SIGINT)
        outcome = self.place.finish(self.command, self.report)
        assert outcome.code == STOPPED, outcome.err + outcome.out
        return outcome.report

    def goes_on(self, after):
        """Once a later mesh than that of this status has trained further."""

        def trains(status):
            newer = status["generation"] > after["generation"]
            return newer and status["step"] >= after["step"] + 3

        self.status(trains, "a later mesh")


@pytest.fixture(scope="module")
def struck(pair, pair_place):
    """The report of a run whose rank dies, and then by Ray's hand an agent; and what was seen.

    That is the command line of what the rank was forked from, as its replacement is too, how many
    agents were killed, and how many processes that one had, all of which have ended.
    """
    run = AgentRun(pair_place, pair, "struck", "checkpoint.snapshot_every=1")
    status = run.reaches(5)
    victim = [one for one in status["workers"] if one["rank"] is not None][-1]
    warm = psutil.Process(victim["pid"]).parent()
    command = warm.cmdline()
    before = {one["pid"] for one in status["workers"]}
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: run.children(warm) - before, "a replacement")
    run.goes_on(after=status)
    whole = run.status()
    owned = [child.pid for child in warm.children()]
    told = run.kill_agents(victim["node"])
    until(lambda: not any(map(lives, owned)), "the end of its ranks")
    run.goes_on(after=whole)
    return run.stop(), command, told.stdout.strip(), len(owned)


def test_a_worker_that_is_out_of_order_is_replaced_without_ray(struck):
    """The replacement is another child of the same warm process: the fixture has waited for it."""
    _, command, _, _ = struck
    assert any("remesh.actors.agent.warm_process" in word for word in command)


def test_ranks_and_vault_end_with_an_agent_that_ray_kills_and_the_run_goes_on(struck, curve):
    report, _, killed, owned = struck
    assert (killed, owned > 1) == ("1", True)  # at least one rank, and the vault
    curve.assert_same_bits(report)
    assert len(report["generations"]) > 2


def test_nobody_is_evicted_where_processors_are_short(cluster, cluster_place, request):
    """Three busy processes a processor, beside the run's own; 20 s of it, in soak ten minutes."""
    settings = ("train.steps=10000", "checkpoint.every=10000")
    run = AgentRun(cluster_place, cluster, "hungry", *settings, pace=())
    run.reaches(5)
    with busy(3 * os.cpu_count()):
        time.sleep(request.config.getoption("--hungry-s"))
        status = run.status()
    assert status["generation"] == 1
    report = run.stop()
    assert len(report["generations"]) == 1
    assert_whole(report)


class Monitored(LocalCluster):
    """All nodes but the head have Ray's memory monitor, for which any use is too much."""

    def _node_environment(self, index):
        environment = super()._node_environment(index)
        if index:
            del environment["RAY_DISABLE_MEMORY_MONITOR"]
            environment |= {"RAY_memory_usage_threshold": "0.001"}
            environment |= {"RAY_memory_monitor_refresh_ms": "100"}
        return environment


def test_a_node_that_ray_finds_short_of_memory_is_told_as_such_and_done_without(place, curve):
    cluster = Monitored.start(nodes=2, workers_per_node=2)
    try:
        own = Place(place.root, cluster.environment())
        run = AgentRun(own, cluster, "short-of-memory", "elastic.max_failures=100")
        run.reaches(1)
        until(lambda: LOW in told(run), LOW)
        run.reaches(run.status()["step"] + 5)
        curve.assert_same_bits(run.stop())
    finally:
        cluster.close()


def told(run):
    return "\n".join(event["text"] for event in read_events(run.folder.path))


@contextmanager
def busy(number):
    """So many processes that want a processor all the time."""
    argv = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as started:
        for _ in range(number):
            process = started.enter_context(subprocess.Popen(argv))
            started.callback(process.kill)
        yield


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_rank_that_hangs_within_a_step_is_found_behind_those_that_wait_for_it(
    cluster, cluster_place, curve
):
    """Neither stopped nor dead: it reads from a pipe into which nobody writes, and beats on."""
    folder = cluster_place.root / "runs" / "hangs"
    outcome = cluster_place.run(
        SHORT, "--address", cluster.address, "--set", f"checkpoint.dir={folder}",
        "--fault", "hang@step=12,rank=1,operation=backward",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err + outcome.out
    curve.assert_same_bits(outcome.report)
    every = [event for start in read_history(folder).starts for event, _ in read(start.lines)]
    lost = [event for event in every if isinstance(event, WorkerLost)]
    events = every[: every.index(lost[0])]
    told = {event.worker: event for event in events if isinstance(event, WorkerStuck)}
    lowest = min((one.step, one.operation) for one in told.values())
    [behind] = [one.worker for one in told.values() if (one.step, one.operation) == lowest]
    assert (len(told), lowest[0]) == (3, 11)
    assert [event.worker for event in lost] == [behind]
