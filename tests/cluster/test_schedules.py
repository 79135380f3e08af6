"""Whatever befalls a run on real hosts, one thing after the other: it goes on, with the same bits.

Each run proves all of it, since what costs time is the run: that it ends as it was told to, counts
each sample once, has the bits that its layout promises, and leaves nothing.
"""

import hosts as real_hosts
import pytest
from place import Place, until
from schedules import HOSTS, STRIKES, WORKERS, StruckRun, schedule_of

from remesh.orchestrator.sim.mishaps.strikes import STRIKES as SIMULATED


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--schedules")))


@pytest.fixture(scope="module")
def hosts(namespaces):  # noqa: ARG001 - or it is not for this machine
    hosts = real_hosts.Hosts.start(HOSTS, num_cpus=WORKERS)
    yield hosts
    hosts.close()


@pytest.fixture(scope="module")
def place(hosts, tmp_path_factory):
    root = tmp_path_factory.mktemp("schedules")
    return Place(root, hosts.environment(), hosts.prefix(root))


def test_a_run_goes_on_through_a_schedule_of_faults(
    hosts, place, curve_of_four, tensor_curve, seed, request
):
    with StruckRun(hosts, place, seed, request.config.getoption("--strikes")) as run:
        report = run.all_of_it()
    calm = tensor_curve if run.layout == "tp2.dp2" else curve_of_four
    calm.assert_same_bits(report)
    assert len(report["generations"]) > 1
    until(lambda: not run.left(), "nothing of the run is left")


@pytest.mark.parametrize("strikes", [2, 4])
def test_four_schedules_in_a_row_have_each_kind_and_the_simulator_has_them_too(strikes):
    drawn = [kind for seed in range(4) for kind in schedule_of(seed, strikes)[1]]
    assert sorted(drawn) == sorted([*STRIKES] * (strikes // 2))
    assert set(STRIKES) <= SIMULATED.keys()
