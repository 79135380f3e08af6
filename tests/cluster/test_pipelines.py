"""Pipelines on hosts of their own: stages die and come back, pipelines change length, no bit does.

Each run has its own schedule, and all train the curve of replicas alone.
"""

import time

import pytest
from place import KILL_AT_13, SHORT, SLOWLY, Place, until

from remesh.actors.history.journal_reading import read_history
from remesh.orchestrator.accounts.view import view_of

STEPS, EVERY = 24, 8
LENGTHS = (1, 2, 4, 3)  # of a pipeline, as the run is given more hosts and fewer
GROUPS = ("parallel.tp=2", "parallel.allow_cross_node_tp=true", "model.num_layers=2")
LOOK_S = 0.2
LAG = 3  # steps that the copies may lie behind on a busy machine


class Runs:
    """Runs of the short job, of four layers, on four hosts of one worker each."""

    def __init__(self, hosts, root):
        self._hosts = hosts
        self._place = Place(root, hosts.environment(), hosts.prefix(root))
        self._root = root

    def report(self, name, *settings, kill=KILL_AT_13):
        outcome = self._place.run(
            SHORT, *self._words(name, f"train.steps={STEPS}", *settings), *kill
        )
        assert outcome.code == 0, outcome.err + outcome.out
        return whole(outcome.report)

    def through(self, lengths, name, *settings):
        """The report of a run that is scaled to as many hosts as this, one after the other."""
        report = self._root / f"{name}.json"
        words = self._words(name, "train.steps=5000", *settings)
        process = self._place.start("run", SHORT, *words, "--report", report, *SLOWLY)
        until(lambda: self._trains(process, name, 4), "four train")
        for length in lengths:
            scaled = self._place.remesh("scale", f"runs/{name}", "--nodes", length)
            assert scaled.code == 0, scaled.err
            until(lambda n=length: self._trains(process, name, n), f"{length} train")
        process.terminate()
        outcome = self._place.finish(process, report)
        assert outcome.code == 143, outcome.err + outcome.out
        return whole(outcome.report)

    def _words(self, name, *settings):
        all_of = (
            f"checkpoint.dir=runs/{name}", f"checkpoint.every={EVERY}", "elastic.max_workers=4",
            "model.num_layers=4", *settings,
        )  # fmt: skip
        sets = [word for setting in all_of for word in ("--set", setting)]
        return ("--address", self._hosts.address, *sets)

    def _trains(self, process, name, members):
        """Whether a mesh of so many has made some steps."""
        time.sleep(LOOK_S)
        assert process.poll() is None, process.communicate()
        journals = read_history(self._root / "runs" / name).starts
        view = view_of(journals[-1].replay()) if journals else None
        if view is None or view.phase != "running":
            return False
        life = view.generations[-1]
        return life.workers == members and view.step > life.from_step + 2


def whole(report):
    samples = report["samples"]
    assert (samples["lost"], samples["repeated"]) == (0, 0)
    return report


def lives(report):
    return [(life["layout"], life["lost_steps"]) for life in report["generations"]]


def assert_three_go_on_or_four(killed, lost):
    """Three workers make no two pipelines, but three replicas; a replacement may be there first."""
    first, second = lives(killed)[:2]
    assert first == ("dp=2 pp=2", 0)
    assert second in [("dp=3", lost), ("dp=2 pp=2", lost)]


@pytest.fixture(scope="module")
def runs(hosts, tmp_path_factory):
    hosts.stand(4)
    return Runs(hosts, tmp_path_factory.mktemp("pipelines"))


@pytest.fixture(scope="module")
def recut(runs):
    """What a live run trains, whose pipeline gets longer and shorter."""
    return runs.through(LENGTHS, "recut", "parallel.pp=4", "elastic.pp=[3,2,1]")


@pytest.fixture(scope="module")
def replicated(runs):
    """The losses of four replicas, each of which has all layers."""
    return runs.report("replicated", kill=())["losses"]


def test_a_pipeline_is_cut_anew_in_a_live_run_and_no_step_is_lost(recut):
    """On its way from two hosts to four it may train on three."""
    assert {lost for _, lost in lives(recut)} == {0}
    after = iter(layout for layout, _ in lives(recut)[1:])
    assert all(layout in after for layout in ("dp=1", "dp=1 pp=2", "dp=1 pp=4", "dp=1 pp=3"))


def test_nor_does_a_bit_change(recut, replicated):
    assert len(recut["losses"]) >= STEPS
    assert recut["losses"][:STEPS] == replicated


def test_a_killed_stage_comes_back_from_another_replica(runs, replicated):
    words = ("parallel.pp=2", "elastic.pp=[1]", "parallel.schedule=interleaved")
    killed = runs.report("replicas", *words)
    assert_three_go_on_or_four(killed, lost=0)
    assert "with the state of the live ranks" in killed["generations"][1]["reason"]
    assert killed["losses"] == replicated


def test_a_killed_stage_of_tp_groups_comes_back_from_a_vault(runs, tensor_curve):
    words = (
        "parallel.pp=2", "elastic.pp=[1]", "parallel.schedule=zb-h1", *GROUPS,
        "checkpoint.snapshot_every=1",
    )  # fmt: skip
    killed = runs.report("groups", *words)
    assert lives(killed)[0] == ("dp=1 pp=2 tp=2", 0)
    recovery = killed["generations"][1]
    assert "from the vault of" in recovery["reason"]
    assert recovery["lost_steps"] <= 1 + LAG
    assert killed["losses"] == tensor_curve.losses(STEPS)


def test_a_killed_stage_whose_shard_nobody_else_holds_comes_back_from_the_checkpoint(
    runs, replicated
):
    words = ("parallel.pp=2", "elastic.pp=[1]", "parallel.schedule=dualpipe-v", "zero.stage=1")
    killed = runs.report("shards", *words)
    assert_three_go_on_or_four(killed, lost=4)
    recovery = killed["generations"][1]
    assert "with checkpoint step-00000008" in recovery["reason"]
    assert "as no live rank holds shard " in recovery["reason"]
    assert killed["losses"] == replicated
