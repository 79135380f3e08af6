"""Workers that share layers and state: a death costs what was promised, and no bit changes."""

import pytest
from place import KILL_AT_13, SHORT

from remesh.actors.run.status import read_events

STEPS, EVERY = 24, 8
HALF = 16  # so many at first, of a run that goes on with other settings
TENSOR = ("parallel.tp=2",)


class Runs:
    """Runs of the short job on a cluster of two nodes, each in a folder of its own."""

    def __init__(self, cluster, place):
        self._cluster = cluster
        self._place = place

    def report(self, folder, *settings, kill=(), steps=STEPS):
        """The report of a run with these settings, which goes on where its folder stands."""
        all_of = (
            f"checkpoint.dir=runs/sharded-{folder}", f"checkpoint.every={EVERY}",
            f"train.steps={steps}", "elastic.max_workers=4", *settings,
        )  # fmt: skip
        sets = [word for setting in all_of for word in ("--set", setting)]
        outcome = self._place.run(SHORT, "--address", self._cluster.address, *sets, *kill)
        assert outcome.code == 0, outcome.err + outcome.out
        samples = outcome.report["samples"]
        assert samples["lost"] == samples["repeated"] == 0
        return outcome.report

    def said(self, folder):
        path = self._place.root / f"runs/sharded-{folder}"
        return [entry["text"] for entry in read_events(path)]


def bits(report):
    return report["losses"][:STEPS]


def lives(report):
    return [(life["layout"], life["lost_steps"]) for life in report["generations"]]


def close_to(losses):
    """Other degrees add in another order."""
    return pytest.approx(losses, abs=1e-3)


@pytest.fixture(scope="module")
def runs(pair, pair_place):
    return Runs(pair, pair_place)


@pytest.fixture(scope="module")
def replicated(curve_of_four):
    """The losses of workers each of which holds everything."""
    return curve_of_four.losses(STEPS + EVERY)


@pytest.fixture(scope="module")
def tensor(tensor_curve):
    """The losses of two tp groups that nothing befalls."""
    return tensor_curve.losses(STEPS)


def test_tp_groups_train_the_same_curve(replicated, tensor):
    assert tensor == close_to(replicated[:STEPS])


def test_a_part_that_another_replica_holds_comes_back_from_it(runs, tensor):
    killed = runs.report("tensor-killed", *TENSOR, kill=KILL_AT_13)
    assert lives(killed)[0] == ("dp=2 tp=2", 0)
    recovery = killed["generations"][1]
    assert "with the state of the live ranks" in recovery["reason"]
    assert recovery["lost_steps"] == 0
    assert bits(killed) == tensor


@pytest.fixture(scope="module")
def hybrid(runs):
    """The first steps of a run with two copies of each shard, one of which dies."""
    return runs.report("hybrid", "zero.stage=3", "zero.group=2", kill=KILL_AT_13, steps=HALF)


def test_so_does_a_shard_of_a_group_that_has_a_copy(hybrid, replicated):
    layouts = [layout for layout, _ in lives(hybrid)]
    assert layouts[0] == "dp=4"
    assert layouts[1] in ("dp=2", "dp=4")  # a replacement may be there first
    assert "with the state of the live ranks" in hybrid["generations"][1]["reason"]
    assert [lost for _, lost in lives(hybrid)] == [0] * len(layouts)
    assert hybrid["losses"] == replicated[:HALF]


def test_a_part_that_nobody_else_holds_comes_back_from_the_checkpoint(runs, tensor):
    killed = runs.report("fully", *TENSOR, "zero.stage=3", kill=KILL_AT_13)
    recovery = killed["generations"][1]
    assert "with checkpoint step-00000008" in recovery["reason"]
    assert "as no live rank holds shard " in recovery["reason"]
    assert recovery["lost_steps"] == 4
    assert bits(killed) == tensor


def test_a_checkpoint_serves_any_stage_any_dp_and_any_tp(runs, hybrid, replicated):
    whole = runs.report("hybrid", "elastic.max_nodes=1")
    assert lives(whole) == [*lives(hybrid), ("dp=2", 0)]
    assert bits(whole) == replicated[:STEPS]
    # As many replicas at most, so that the global batch has the same leaves.
    both = (*TENSOR, "parallel.sequence=true", "elastic.max_workers=8")
    split = runs.report("hybrid", *both, steps=STEPS + EVERY)
    assert lives(split) == [*lives(whole), ("dp=2 tp=2", 0)]
    assert split["losses"] == close_to(replicated)
    said = [text for text in runs.said("hybrid") if "bits" in text]
    assert said == [
        "the bits change from here on: parallel.sequence was false and is true",
        "the bits change from here on: parallel.tp was 1 and is 2",
    ]
