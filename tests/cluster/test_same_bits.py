"""The loss curve does not notice: kills, other numbers of workers, interruptions."""

import pytest
from place import TINY


@pytest.fixture(scope="module")
def undisturbed(place):
    return place.run(TINY, "--fresh")


@pytest.fixture(scope="module")
def killed(place):
    return place.run(TINY, "--fresh", "--kill", "worker@20", "--kill", "node@40")


def assert_whole(outcome):
    assert outcome.code == 0, outcome.err + outcome.out
    report = outcome.report
    assert report["status"] == "finished"
    assert len(report["losses"]) == report["steps"] == 80
    samples = report["samples"]
    assert samples["lost"] == samples["repeated"] == 0
    assert samples["consumed"] == samples["expected"] == 80 * 24


def bits(outcome):
    return outcome.report["losses"], outcome.report["samples"]["digest"]


def test_the_loss_falls(undisturbed):
    assert_whole(undisturbed)
    losses = undisturbed.report["losses"]
    assert losses[0] > 5.0
    assert sum(losses[-10:]) / 10 < 2.7
    assert len(undisturbed.report["generations"]) == 1


def test_a_killed_worker_and_a_killed_node_do_not_change_a_bit(undisturbed, killed):
    assert_whole(killed)
    assert len(killed.report["generations"]) >= 3
    assert bits(killed) == bits(undisturbed)


def test_a_killed_worker_costs_under_a_second_and_a_killed_node_under_two(killed):
    recoveries = [life for life in killed.report["generations"] if life["recovery_s"]]
    worker, node = recoveries[0], recoveries[-1]
    assert worker["recovery_s"] < 1.0, worker
    assert node["recovery_s"] < 2.0, node
    assert all(life["lost_steps"] <= 1 for life in recoveries)
    for life in recoveries:
        assert sum(life["recovery_parts"].values()) == pytest.approx(life["recovery_s"], abs=0.01)


def test_survivors_keep_their_processes(killed):
    first, *_, last = killed.report["generations"]
    before = {member["worker"]: member["pid"] for member in first["members"]}
    after = {member["worker"]: member["pid"] for member in last["members"]}
    survivors = before.keys() & after.keys()
    assert survivors
    assert all(before[worker] == after[worker] for worker in survivors)


@pytest.fixture(scope="module")
def narrower(place, undisturbed):
    """Outcomes by number of workers, of runs that go on side by side."""
    assert undisturbed.code == 0  # it has built the dataset
    reports = {workers: place.root / f"report-{workers}.json" for workers in (1, 2, 3)}
    commands = {
        workers: place.start(
            "run", TINY, "--nodes", 1, "--workers-per-node", workers, "--report", report,
            "--set", f"checkpoint.dir=runs/tiny-{workers}",
        )
        for workers, report in reports.items()
    }  # fmt: skip
    return {
        workers: place.finish(command, reports[workers]) for workers, command in commands.items()
    }


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_another_number_of_workers_does_not_change_a_bit(undisturbed, narrower, workers):
    assert_whole(narrower[workers])
    assert bits(narrower[workers]) == bits(undisturbed)
