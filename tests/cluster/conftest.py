"""Places and clusters shared by the tests of this tier; each test leaves them whole."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # place.py is no package

from place import Place

from remesh.actors.local_cluster import LocalCluster


def pytest_addoption(parser):
    parser.addoption("--random-runs", type=int, default=20, help="runs disturbed at random moments")


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """One working folder: the dataset is built once, by the first run in it."""
    return Place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster of two nodes that several runs share, one after the other."""
    cluster = LocalCluster.start(nodes=2, workers_per_node=2)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def cluster_place(cluster, tmp_path_factory):
    """A working folder whose commands reach the shared cluster."""
    return Place(tmp_path_factory.mktemp("shared"), cluster.environment())
