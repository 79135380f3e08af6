import hashlib
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remesh.data.order import rows_of

WORD = (1 << 64) - 1
AWKWARD = sorted({1, 2, 3, 5} | {(1 << k) + d for k in (2, 3, 6, 7, 10, 13) for d in (-1, 0, 1)})

# The published vectors of order version 1: (num_rows, seed, first position) -> eight rows.
VECTORS = {
    (1, 0, 0): [0, 0, 0, 0, 0, 0, 0, 0],
    (2, 0, 0): [0, 1, 0, 1, 0, 1, 0, 1],
    (10, 0, 0): [0, 1, 8, 3, 9, 7, 4, 2],
    (10, 0, 10): [3, 5, 7, 6, 9, 0, 2, 4],
    (1000, 7, 996): [918, 452, 625, 643, 689, 497, 906, 337],
    (65537, -1, 65530): [17729, 8383, 15114, 64808, 35974, 29578, 14288, 47299],
    (93948, 0, 0): [12425, 15499, 25335, 87509, 2853, 40256, 35187, 29136],
    (10**12, 2**64, 10**15): [
        2432570980,
        138214812039,
        721704391959,
        642143191674,
        15504064486,
        12592702695,
        877482650358,
        871933495203,
    ],
}


def row_by_the_specification(position, num_rows, seed):
    """The order's specification once more, in plain integers."""
    epoch, row = divmod(position, num_rows)
    key_bytes = hashlib.sha512(f"remesh-order-1/{seed}/rows/0/{epoch}".encode()).digest()
    keys = [int.from_bytes(key_bytes[at : at + 8], "big") for at in range(0, 64, 8)]
    bits = max(1, (num_rows - 1).bit_length())
    while True:
        left_bits, right_bits = bits - bits // 2, bits // 2
        left, right = row >> right_bits, row % (1 << right_bits)
        for key in keys:
            left, right = right, left ^ (mixed(right + key) % (1 << left_bits))
            left_bits, right_bits = right_bits, left_bits
        row = left << right_bits | right
        if row < num_rows:
            return row


def mixed(word):
    word &= WORD
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & WORD
    return word ^ word >> 33


@pytest.mark.parametrize(("case", "rows"), VECTORS.items(), ids=str)
def test_published_vectors(case, rows):
    num_rows, seed, first = case
    assert rows_of(first, first + 8, num_rows=num_rows, seed=seed).tolist() == rows


@given(
    num_rows=st.integers(1, 10**13),
    seed=st.integers(),
    position=st.integers(0, 2**62),
    n=st.just(3),
)
def test_equals_the_specification_in_plain_integers(num_rows, seed, position, n):
    rows = rows_of(position, position + n, num_rows=num_rows, seed=seed)
    expected = [row_by_the_specification(position + k, num_rows, seed) for k in range(n)]
    assert rows.tolist() == expected


@pytest.mark.parametrize("num_rows", AWKWARD)
def test_every_epoch_has_every_row_once(num_rows):
    rows = rows_of(0, 3 * num_rows, num_rows=num_rows, seed=42).reshape(3, num_rows)
    assert (np.sort(rows, axis=1) == np.arange(num_rows)).all()


@given(num_rows=st.integers(5, 50), cuts=st.lists(st.integers(0, 100), max_size=3))
@settings(max_examples=50)
def test_a_range_can_be_cut_anywhere(num_rows, cuts):
    cuts = [0, *sorted(cuts), 100]
    parts = [rows_of(a, b, num_rows=num_rows, seed=1) for a, b in pairwise(cuts)]
    whole = rows_of(0, 100, num_rows=num_rows, seed=1)
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert rows_of(99, 100, num_rows=num_rows, seed=1)[0] == whole[-1]


@pytest.mark.parametrize(("num_rows", "orders"), [(2, 2), (3, 6), (4, 24)])
def test_small_datasets_see_all_their_orders_about_equally_often(num_rows, orders):
    epochs = rows_of(0, 2400 * num_rows, num_rows=num_rows, seed=0).reshape(-1, num_rows)
    counts = Counter(map(tuple, epochs.tolist()))
    share = len(epochs) / orders
    assert len(counts) == orders
    assert sum((count - share) ** 2 for count in counts.values()) / share < 3 * orders + 10


@pytest.mark.parametrize("num_rows", [1 << 14, (1 << 14) + 1, 10_000])
def test_an_order_looks_like_chance(num_rows):
    rows = rows_of(0, num_rows, num_rows=num_rows, seed=3)
    identity = np.arange(num_rows)
    noise = 4 / np.sqrt(num_rows)
    assert abs(np.corrcoef(rows, identity)[0, 1]) < noise
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < noise
    assert (rows == identity).sum() < 10
    assert (np.diff(rows) == 1).sum() < 10
    spread = np.histogram2d(identity, rows, bins=16)[0]
    mean = num_rows / 256
    assert ((spread - mean) ** 2 / mean).sum() < 256 + 6 * np.sqrt(2 * 256)


def test_neighbouring_seeds_and_epochs_share_no_order():
    epochs = [tuple(rows_of(100 * e, 100 * e + 100, num_rows=100, seed=0)) for e in range(20)]
    seeds = [tuple(rows_of(0, 100, num_rows=100, seed=s)) for s in range(1, 20)]
    assert len(set(epochs + seeds)) == 39


def test_a_step_of_a_huge_dataset_costs_no_memory():
    rows = rows_of(10**15, 10**15 + 512, num_rows=10**12, seed=0)
    assert len(set(rows.tolist())) == 512
    assert 0 <= rows.min() <= rows.max() < 10**12


@pytest.mark.parametrize(("start", "stop", "num_rows"), [(0, 1, 0), (-1, 1, 5), (3, 2, 5)])
def test_nonsense_is_refused(start, stop, num_rows):
    with pytest.raises(ValueError, match=r"num_rows=0|\[-1, 1\)|\[3, 2\)"):
        rows_of(start, stop, num_rows=num_rows, seed=0)


def test_the_pure_files_load_neither_arrow_nor_torch():
    script = (
        "import sys; from remesh.data import cursor, digest, manifest, order, skips;"
        "sys.exit(bool({'pyarrow', 'torch', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_who_reads_samples_loads_no_arrow():
    """speed 2: a rank and a command have less to load as they start."""
    script = "import sys; import remesh.data.stream; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
