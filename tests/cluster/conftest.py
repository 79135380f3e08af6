"""Places and clusters shared by the tests of this tier; each test leaves them whole."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # place.py is no package

import hosts as real_hosts
import needed
from curve import Curve
from local_hosts import LocalHosts
from place import SHORT, Place

from remesh.actors.cluster.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """One working folder: the dataset is built once, by the first run in it."""
    return Place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster of one node that several runs share, one after the other."""
    cluster = LocalCluster.start(nodes=1, workers_per_node=4)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def pair():
    """Another one, of two nodes: each node of a run costs an agent and a warm process."""
    cluster = LocalCluster.start(nodes=2, workers_per_node=2)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def pair_place(pair, tmp_path_factory):
    """A working folder whose commands reach the cluster of two nodes."""
    return Place(tmp_path_factory.mktemp("pair"), pair.environment())


@pytest.fixture(scope="session")
def cluster_place(cluster, tmp_path_factory):
    """A working folder whose commands reach the shared cluster."""
    return Place(tmp_path_factory.mktemp("shared"), cluster.environment())


@pytest.fixture(scope="session")
def short_undisturbed(cluster, cluster_place):
    """The report of the short job when nothing happens to it."""
    outcome = cluster_place.run(SHORT, "--address", cluster.address)
    assert outcome.code == 0, outcome.err + outcome.out
    return outcome.report


@pytest.fixture(scope="session")
def curve(cluster, cluster_place):
    """What every run of the short job trains, whatever happens to it."""
    return Curve(cluster_place, cluster, "curve")


@pytest.fixture(scope="session")
def curve_of_four(cluster, cluster_place):
    """The same for at most four workers, whose batches fall into other leaves."""
    return Curve(cluster_place, cluster, "curve-of-four", "elastic.max_workers=4", at_first=120)


@pytest.fixture(scope="session")
def tensor_curve(cluster, cluster_place):
    """That of four workers in tp groups: a split of tensors rounds in another order than none."""
    settings = ("elastic.max_workers=4", "parallel.tp=2")
    return Curve(cluster_place, cluster, "tensor-curve", *settings, at_first=80)


@pytest.fixture(scope="session")
def why_no_hosts():
    """Why there can be no hosts of their own on this machine, None if there can."""
    return real_hosts.why_not()


@pytest.fixture(scope="session")
def hosts(why_no_hosts):
    """Two hosts or more, which a test asks for with `stand`, or else sessions in their place."""
    hosts = (LocalHosts if why_no_hosts else real_hosts.Hosts).start(2)
    yield hosts
    hosts.close()


@pytest.fixture(scope="session")
def namespaces(why_no_hosts):
    """For a test that sessions in the place of hosts do not serve."""
    if why_no_hosts:
        needed.do_without(f"there are no hosts with networks of their own: {why_no_hosts}")


def pytest_terminal_summary(terminalreporter):
    """A test that was skipped is named with the reason."""
    for report in terminalreporter.getreports("skipped"):
        if isinstance(report.longrepr, tuple):
            terminalreporter.write_line(f"{report.nodeid}: {report.longrepr[2]}")
