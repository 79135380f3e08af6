"""The referee at its port: a rank's line to it, in one process."""

import secrets

import pytest

from remesh.parallel.groups.strict.referee_line import RefereeLine
from remesh.parallel.groups.strict.referee_service import RefereeService

LIMIT_S = 30.0


class Deaf:
    """A group that is told nothing here."""

    def go(self): ...

    def fail(self, text): ...


@pytest.fixture
def line():
    secret = secrets.token_bytes(32)
    service = RefereeService.open("127.0.0.1", secret=secret, num_ranks=1, limit_s=LIMIT_S)
    line = RefereeLine.connect(
        ("127.0.0.1", service.port), secret=secret, rank=0, timeout_s=LIMIT_S
    )
    yield line
    line.close()


def test_who_asks_hears_that_nothing_is_wrong(line):
    line.joins("world", 0, Deaf())
    assert line.verdict(asks=True) == ""


def test_a_word_that_no_referee_knows_ends_the_mesh_by_name(line):
    line.joins("world", 0, Deaf())
    line.says("sings", "a song")
    assert line.verdict(asks=True) == "rank 0 said what no referee knows: ['sings', 'a song']"
