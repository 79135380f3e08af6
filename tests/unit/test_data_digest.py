from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remesh.data.digest import SampleDigests, StepDigest, expected_digest, sample_hashes
from remesh.data.order import rows_of
from remesh.data.skips import Skips, parse_skips

JOB = {"global_batch": 24, "num_rows": 1000, "seed": 5, "skips": Skips()}


def digest(first_position, rows):
    return SampleDigests.of(first_position, np.array(rows, np.int64)).between(0, len(rows))


def test_published_vectors():
    assert [f"{word:016x}" for word in sample_hashes(0, np.array([0, 1, 7]))] == [
        "6393d51c06c618dc",
        "378cb22f6ca5d76d",
        "c5620a11c2b97331",
    ]
    assert expected_digest(1, **JOB).hex() == "0000000bcf06ec080000000d124ef3f000000018"


@given(st.lists(st.integers(0, 24), max_size=6))
def test_parts_add_up_in_any_cut(cuts):
    edges = [0, *sorted(cuts), 24]
    rows = rows_of(24, 48, num_rows=1000, seed=5)
    parts = [digest(24 + a, rows[a:b]) for a, b in pairwise(edges)]
    assert sum(reversed(parts), StepDigest()) == expected_digest(2, **JOB)


def test_a_lost_repeated_exchanged_or_foreign_sample_shows():
    rows = list(range(10, 34))
    whole = digest(0, rows)
    exchanged = [rows[1], rows[0], *rows[2:]]
    repeated = [rows[1], *rows[1:]]
    others = [digest(0, rows[:-1]), digest(0, exchanged), digest(0, repeated), digest(24, rows)]
    assert whole not in others
    assert len({other.hex() for other in [whole, *others]}) == 5


def test_step_seed_skips_and_size_change_the_digest():
    changes = [{"seed": 6}, {"num_rows": 500}, {"skips": parse_skips(["1"])}, {"global_batch": 23}]
    digests = [expected_digest(1, **(JOB | change)) for change in [{}, *changes]]
    assert len({d.hex() for d in [*digests, expected_digest(3, **JOB)]}) == 6


def test_skipping_a_batch_moves_the_digests_of_the_steps_behind_it():
    unskipped = expected_digest(4, **JOB)
    assert expected_digest(3, **(JOB | {"skips": parse_skips(["3"])})) == unskipped


def test_the_sums_of_the_largest_batch_fit_a_signed_64_bit_all_reduce():
    largest = StepDigest(high=(1 << 31) * (2**32 - 1), low=(1 << 31) * (2**32 - 1), count=1 << 31)
    assert max(largest.high, largest.low) < 1 << 63
    assert len(largest.hex()) == 40


def test_a_run_within_a_window_equals_the_run_alone():
    rows = rows_of(0, 500, num_rows=1000, seed=5)
    window = SampleDigests.of(0, rows)
    assert window.between(100, 103) == digest(100, rows[100:103])
    assert window.between(7, 7) == StepDigest()
