"""The loss curve does not notice: kills, other numbers of workers, interruptions."""

import pytest
from place import SHORT


@pytest.fixture(scope="module")
def killed(place):
    """A worker dies and then a node, on which another one was; snapshots are taken by the way."""
    settings = ("--set", "elastic.max_workers=4", "--set", "checkpoint.snapshot_every=auto")
    return finished(place.run(SHORT, *settings, "--kill", "worker@20", "--kill", "node@40"))


def finished(outcome):
    assert outcome.code == 0, outcome.err + outcome.out
    assert outcome.report["status"] == "finished"
    assert len(outcome.report["losses"]) == outcome.report["steps"] == 80
    return outcome.report


def test_the_loss_falls_in_every_run_alike(short_undisturbed, curve):
    losses = short_undisturbed["losses"]
    assert losses[0] > 5.0
    assert sum(losses[-10:]) / 10 < 3.0
    assert len(short_undisturbed["generations"]) == 1
    curve.assert_same_bits(short_undisturbed)


def test_a_killed_worker_and_a_killed_node_do_not_change_a_bit(curve_of_four, killed):
    assert len(killed["generations"]) >= 3
    curve_of_four.assert_same_bits(killed)


def test_a_killed_worker_costs_under_a_second_and_a_killed_node_under_two(killed):
    recoveries = [life for life in killed["generations"] if life["recovery_s"]]
    worker, node = recoveries[0], recoveries[-1]
    assert worker["recovery_s"] < 1.0, worker
    assert node["recovery_s"] < 2.0, node
    assert all(life["lost_steps"] <= 1 for life in recoveries)
    for life in recoveries:
        assert sum(life["recovery_parts"].values()) == pytest.approx(life["recovery_s"], abs=0.01)


def test_survivors_keep_their_processes(killed):
    first, *_, last = killed["generations"]
    before = {member["worker"]: member["pid"] for member in first["members"]}
    after = {member["worker"]: member["pid"] for member in last["members"]}
    survivors = before.keys() & after.keys()
    assert survivors
    assert all(before[worker] == after[worker] for worker in survivors)


@pytest.fixture(scope="module")
def narrower(place, killed):
    """Reports by number of workers, of runs that go on side by side."""
    assert killed  # it has built the dataset
    reports = {workers: place.root / f"report-{workers}.json" for workers in (1, 2)}
    commands = {
        workers: place.start(
            "run", SHORT, "--nodes", 1, "--workers-per-node", workers, "--report", report,
            "--set", f"checkpoint.dir=runs/short-{workers}",
        )
        for workers, report in reports.items()
    }  # fmt: skip
    return {
        workers: finished(place.finish(command, reports[workers]))
        for workers, command in commands.items()
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_another_number_of_workers_does_not_change_a_bit(curve, narrower, workers):
    [life] = narrower[workers]["generations"]
    assert len(life["members"]) == workers
    curve.assert_same_bits(narrower[workers])
