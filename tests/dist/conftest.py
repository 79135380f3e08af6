"""The pool of warm processes, shared by all tests of this tier."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the pool's processes import it by name

from house_control import SETTINGS, HouseControl
from node_house import house_spec
from process_pool import HOST, Pool

from remesh.parallel.groups.store import StoreServer

torch.set_num_threads(1)  # as in the pool: the oracles' threads would only wait for each other


@pytest.fixture(scope="session")
def sessions_pool():
    server = StoreServer.open(HOST)
    pool = Pool(server.port, server.secret)
    yield pool
    pool.close()
    server.close()


@pytest.fixture
def pool(sessions_pool):
    yield sessions_pool
    sessions_pool.reclaim()


@pytest.fixture
def strict_pool(sessions_pool):
    """The same processes, whose groups are as strict as a device's."""
    before, sessions_pool.strict = sessions_pool.strict, True
    yield sessions_pool
    sessions_pool.strict = before
    sessions_pool.reclaim()


@pytest.fixture
def make_control(tmp_path):
    """Makes houses in which a controller decides, by a name for each.

    It has much patience with those whom a busy machine holds up, unless who is silent is the case.
    """
    houses = []

    def make(name, patience_s=5.0):
        folder = tmp_path / name
        folder.mkdir()
        spec = house_spec(folder, patience_s, SETTINGS)
        houses.append(HouseControl(spec, slots=3, spares=1))
        return houses[-1]

    yield make
    for house in houses:
        house.close()
