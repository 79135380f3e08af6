from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remesh.data.digest import ExpectedDigests, StepDigest, sample_keys
from remesh.data.order import mix64, rows_of
from remesh.data.skips import Skips, parse_skips

JOB = {"global_batch": 24, "num_rows": 1000, "seed": 5}


def hash_of(rows):
    """In the place of the hashes of what rows hold."""
    return mix64(np.asarray(rows, np.int64).astype(np.uint64) + np.uint64(99))


def expected(step, skips=None, **changes):
    digests = ExpectedDigests(hashes_of=hash_of, **(JOB | changes))
    return digests.of(step, skips or Skips())


def digest(first_position, rows, tokens=None):
    """That of samples whose rows are these, and hold what other rows hold if those are given."""
    keys = sample_keys(first_position, np.array(rows, np.int64))
    return StepDigest.of(keys, hash_of(rows if tokens is None else tokens))


def test_published_vectors():
    assert [f"{word:016x}" for word in sample_keys(0, np.array([0, 1, 7]))] == [
        "6393d51c06c618dd",
        "378cb22f6ca5d76d",
        "c5620a11c2b97331",
    ]
    tokens = np.array([3, 0xFEDCBA9876543210], np.uint64)
    both = StepDigest.of(sample_keys(0, np.array([0, 1])), tokens)
    assert both.hex() == "00000000baa117f20000000030870b6700000002"
    assert expected(1).hex() == "0000000d15204cda0000000a97908d4d00000018"


@given(st.lists(st.integers(0, 24), max_size=6))
def test_parts_add_up_in_any_cut(cuts):
    edges = [0, *sorted(cuts), 24]
    rows = rows_of(24, 48, num_rows=1000, seed=5)
    parts = [digest(24 + a, rows[a:b]) for a, b in pairwise(edges)]
    assert sum(reversed(parts), StepDigest()) == expected(2)


def test_a_lost_repeated_exchanged_or_foreign_sample_shows():
    rows = list(range(10, 34))
    whole = digest(0, rows)
    exchanged = [rows[1], rows[0], *rows[2:]]
    repeated = [rows[1], *rows[1:]]
    others = [digest(0, rows[:-1]), digest(0, exchanged), digest(0, repeated), digest(24, rows)]
    assert whole not in others
    assert len({other.hex() for other in [whole, *others]}) == 5


def test_tokens_that_are_those_of_another_row_show():
    """speed 5: it is what was read that is added up, and not what was asked for."""
    rows = list(range(10, 34))
    others = [
        digest(0, rows, [rows[1], *rows[1:]]),
        digest(0, rows, [rows[1], rows[0], *rows[2:]]),
        digest(0, rows, [*rows[:-1], 99]),
    ]
    assert len({other.hex() for other in [digest(0, rows), *others]}) == 4


def test_step_seed_skips_and_size_change_the_digest():
    changes = [{"seed": 6}, {"num_rows": 500}, {"skips": parse_skips(["1"])}, {"global_batch": 23}]
    digests = [expected(1, **change) for change in [{}, *changes]]
    assert len({d.hex() for d in [*digests, expected(3)]}) == 6


def test_skipping_a_batch_moves_the_digests_of_the_steps_behind_it():
    assert expected(3, parse_skips(["3"])) == expected(4)


def test_the_sums_of_the_largest_batch_fit_a_signed_64_bit_all_reduce():
    largest = StepDigest(high=(1 << 31) * (2**32 - 1), low=(1 << 31) * (2**32 - 1), count=1 << 31)
    assert max(largest.high, largest.low) < 1 << 63
    assert len(largest.hex()) == 40


def test_steps_in_any_order_have_the_digests_of_steps_alone():
    """speed 4: those of a window of positions are computed together."""
    digests = ExpectedDigests(hashes_of=hash_of, **JOB)
    for step in (1, 2, 170, 171, 172, 5, 341, 342, 1000):  # a window of 4,096 ends in some
        rows = rows_of((step - 1) * 24, step * 24, num_rows=1000, seed=5)
        assert digests.of(step, Skips()) == digest((step - 1) * 24, rows)


def test_a_row_is_looked_up_once_however_many_steps_ask():
    """speed 4: a step costs its own samples, each computed once."""
    asked = []

    def counted(rows):
        asked.append(len(rows))
        return hash_of(rows)

    digests = ExpectedDigests(hashes_of=counted, **JOB)
    for step in range(1, 1025):
        digests.of(step, Skips())
    assert sum(asked) == 1024 * 24
