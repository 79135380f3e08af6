"""The pool of warm processes, shared by all tests of this tier."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the pool's processes import it by name

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
