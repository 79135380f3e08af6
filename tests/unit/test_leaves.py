import random

import pytest

from remesh.parallel.plan import leaves
from remesh.parallel.plan.errors import LayoutError


def reference(values, start, size):
    """The aligned tree by recursion, over a power of two, absent leaves left out."""
    if start >= len(values):
        return None
    if size == 1:
        return values[start]
    left = reference(values, start, size // 2)
    right = reference(values, start + size // 2, size // 2)
    return left if right is None else left + right


def tree_over_ranks(values, dp):
    num_leaves = len(values)
    root = []
    for span in leaves.deal(num_leaves, dp):
        own = []
        for leaf in span:
            node = (range(leaf, leaf + 1), values[leaf])
            leaves.push(own, node, float.__add__, num_leaves)
        for node in own:
            leaves.push(root, node, float.__add__, num_leaves)
    assert [node for node, _ in root] == [range(num_leaves)]
    return root[0][1]


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 16, 24, 31, 60])
def test_tree_adds_in_one_order_for_every_number_of_ranks(num_leaves):
    rng = random.Random(num_leaves)
    values = [rng.uniform(-1, 1) * 10 ** rng.randint(-8, 8) for _ in range(num_leaves)]
    expected = reference(values, 0, 64)
    for dp in range(1, num_leaves + 3):
        assert tree_over_ranks(values, dp) == expected


@pytest.mark.parametrize("num_leaves", [1, 6, 11, 12, 16, 24])
def test_aligned_nodes_cover_their_span_in_order_and_are_few(num_leaves):
    for start in range(num_leaves):
        for stop in range(start, num_leaves + 1):
            nodes = leaves.aligned_nodes(range(start, stop), num_leaves)
            assert [leaf for node in nodes for leaf in node] == list(range(start, stop))
            assert len(nodes) <= 2 * num_leaves.bit_length()


def test_aligned_nodes_of_known_spans():
    assert leaves.aligned_nodes(range(12), 12) == (range(12),)
    assert leaves.aligned_nodes(range(6), 12) == (range(4), range(4, 6))
    assert leaves.aligned_nodes(range(6, 12), 12) == (range(6, 8), range(8, 12))
    assert leaves.aligned_nodes(range(8, 11), 11) == (range(8, 11),)
    assert leaves.aligned_nodes(range(3, 3), 12) == ()


def test_join_wants_siblings():
    assert leaves.join(range(2), range(2, 4), 8) == range(4)
    assert leaves.join(range(2, 4), range(4, 6), 8) is None
    assert leaves.join(range(8), range(8, 9), 12) is None
    assert leaves.join(range(8), range(8, 12), 12) == range(12)
    assert leaves.join(range(8), range(8, 8), 8) is None


@pytest.mark.parametrize(
    ("num_leaves", "dp"), [(12, 4), (12, 5), (12, 7), (3, 4), (1, 1), (24, 16)]
)
def test_deal_is_contiguous_complete_and_even_within_one(num_leaves, dp):
    spans = leaves.deal(num_leaves, dp)
    assert [leaf for span in spans for leaf in span] == list(range(num_leaves))
    assert len(spans) == dp
    lengths = [len(span) for span in spans]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("num_microbatches", "max_dp", "expected"),
    [
        (12, 4, 12),  # 4 and 8 starve three replicas
        (16, 2, 2),
        (64, 4, 32),  # at three replicas 16 leaves keep 16/18, 32 keep 32/33
        (24, 4, 12),
        (3, 4, 3),  # fewer microbatches than replicas: the best there is
        (1, 8, 1),
        (7, 1, 1),
    ],
)
def test_choice_of_leaves(num_microbatches, max_dp, expected):
    assert leaves.choose_num_leaves(num_microbatches, max_dp) == expected


def test_choice_divides_and_is_good_where_it_can_be():
    for num_microbatches in range(1, 130):
        for max_dp in range(1, 9):
            chosen = leaves.choose_num_leaves(num_microbatches, max_dp)
            assert num_microbatches % chosen == 0
            divisors = [n for n in range(1, num_microbatches + 1) if num_microbatches % n == 0]
            best = max(leaves.worst_efficiency(n, max_dp) for n in divisors)
            assert leaves.worst_efficiency(chosen, max_dp) >= min(best, 0.9)


def test_efficiency_is_the_share_of_the_fullest_replica():
    assert leaves.efficiency(12, 4) == 1
    assert leaves.efficiency(4, 3) == pytest.approx(2 / 3)
    assert leaves.efficiency(3, 4) == pytest.approx(3 / 4)


def test_counts_below_one_are_refused():
    with pytest.raises(LayoutError, match="0 microbatches on up to 4 replicas"):
        leaves.choose_num_leaves(0, 4)
