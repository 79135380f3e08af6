"""Nodes join and leave a live run, in every way there is: no step is lost and no bit changes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from place import SHORT, SLOWLY, Place, until

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.node.processes import look, processes
from remesh.actors.run.contact import ask
from remesh.actors.run.folder import RunFolder

AFTER = 2
MANY_STEPS = 5000


class Story:
    """A run of the short job on a cluster of its own, and what was seen on the way."""

    def __init__(self, cluster, root):
        self.cluster = cluster
        self.place = Place(root, cluster.environment())
        self.folder = RunFolder(root / "runs" / "short")
        self.seen = {}

    def start(self):
        self.report = self.place.root / "report.json"
        settings = (f"train.steps={MANY_STEPS}", "elastic.max_nodes=3")
        sets = [word for setting in settings for word in ("--set", setting)]
        self.process = self.place.start(
            "run", SHORT, "--fresh", "--address", self.cluster.address, *sets,
            "--report", self.report, *SLOWLY,
        )  # fmt: skip

    def finish(self, code):
        outcome = self.place.finish(self.process, self.report)
        assert outcome.code == code, outcome.err + outcome.out
        return outcome.report

    def trains(self, members, *, steps=AFTER):
        """The status once a mesh of so many members has made some steps."""
        status = until(lambda: self._trains(members, 0), f"{members} members train")
        last = status["step"] + steps
        return until(lambda: self._trains(members, last), f"{members} reach step {last}")

    def workers(self, session):
        """Processes of the run that have a node's session: its agent and what that has started."""
        return [p.pid for p in processes() if p.session == session and _is_of_a_run(p.pid)]

    def _trains(self, members, from_step):
        assert self.process.poll() is None, self.process.communicate()
        contact = self.folder.contact()
        status = contact and ask(contact, "/status")
        if not status or status["phase"] != "running" or status["step"] < from_step:
            return None
        ranks = [worker for worker in status["workers"] if worker["rank"] is not None]
        return status if len(ranks) == members else None


def _is_of_a_run(pid):
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ray::Agent") or b"warm_process" in command


def address_of(cluster, session):
    return f"127.0.0.{2 + cluster.sessions.index(session)}"


def told(story):
    """One run through all that may happen to its nodes; its report."""
    cluster = story.cluster
    head, second = cluster.sessions
    story.start()
    story.trains(2)

    third = cluster.add_node(num_cpus=1)
    story.seen["joined"] = story.trains(3)

    os.kill(third, signal.SIGTERM)
    story.trains(2)
    until(lambda: not look(third), "the node that was told to end is gone")

    story.seen["scaling down"] = story.place.remesh("scale", "runs/short", "--nodes", 1)
    story.seen["scaled down"] = story.trains(1)
    until(lambda: not story.workers(second), "nothing is left on the spare node")
    until(lambda: len(story.workers(head)) == 3, "agent, warm process, worker")

    story.seen["beyond"] = story.place.remesh("scale", "runs/short", "--nodes", 4)
    story.place.remesh("scale", "runs/short", "--nodes", 3)
    story.seen["scaled up"] = story.trains(2)

    drained = address_of(cluster, second)
    story.seen["draining"] = story.place.remesh("drain", drained)
    story.seen["drained"] = story.trains(1)
    until(lambda: not story.workers(second), "nothing is left on the drained node")

    story.process.send_signal(signal.SIGINT)
    report = story.finish(130)
    story.seen["left"] = left_of(story)
    return report


def left_of(story):
    """Names of the actors that are alive on the cluster, and of its placement groups."""
    script = (
        "import ray; from ray.util import list_named_actors, placement_group_table as table;"
        "ray.init(log_to_driver=False, logging_level='ERROR');"
        "print(*[a['name'] for a in list_named_actors(all_namespaces=True)], *table(), sep='\\n')"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**story.place.environment, "RAY_ADDRESS": story.cluster.address},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.split()


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    cluster = LocalCluster.start(nodes=2, workers_per_node=1)
    try:
        story = Story(cluster, tmp_path_factory.mktemp("nodes"))
        story.told = told(story)
        yield story
    finally:
        cluster.close()


def layouts(story):
    return [life["layout"] for life in story.told["generations"]]


def states(status):
    """In the order of the nodes' addresses; the status lists them as they have joined."""
    return [node["state"] for node in sorted(status["nodes"], key=lambda node: node["node"])]


def test_each_change_of_nodes_makes_one_generation(story):
    assert layouts(story) == ["dp=2", "dp=3", "dp=2", "dp=1", "dp=2", "dp=1"]


def test_nothing_is_lost_and_nothing_counts_as_a_failure(story):
    lives = story.told["generations"]
    assert [life["lost_steps"] for life in lives] == [0] * len(lives)
    assert [life["died_at_s"] for life in lives] == [None] * len(lives)
    assert story.seen["drained"]["failures"] == 0
    samples = story.told["samples"]
    assert samples["lost"] == samples["repeated"] == 0


def test_the_reasons_say_what_happened_to_the_nodes(story):
    reasons = [life["reason"] for life in story.told["generations"]]
    assert "growing from 2 to 3 workers" in reasons[1]
    assert "doing without 127.0.0.4-" in reasons[2]
    assert "doing without 127.0.0.3-" in reasons[3]


def test_a_node_that_is_scaled_away_stays_as_a_spare_and_a_drained_one_does_not(story):
    assert states(story.seen["joined"]) == ["used"] * 3
    assert states(story.seen["scaled down"])[:2] == ["used", "spare"]
    assert states(story.seen["scaled up"])[:2] == ["used", "used"]
    assert states(story.seen["drained"])[:2] == ["used", "drained"]


def test_nothing_of_the_run_is_left_on_the_cluster(story):
    assert story.seen["left"] == []


def test_the_commands_say_what_comes_of_it_or_refuse_with_the_bound(story):
    assert story.seen["scaling down"].out == "2 nodes are in use, 1 wanted\n"
    assert "is leaving; 1 node stays in use" in story.seen["draining"].out
    beyond = story.seen["beyond"]
    assert (beyond.code, beyond.out) == (2, "")
    assert beyond.err == "remesh: 4 nodes are more than elastic.max_nodes = 3\n"


def test_no_bit_changes(story, curve):
    curve.assert_same_bits(story.told)
