import math
import random
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.parallel.plan import leaves
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.leaves import LeafTree
from remesh.parallel.plan.node_deals import deal_evenly, deal_nodes


def aligned(values):
    """The aligned tree by recursion, cut off at its end."""
    if len(values) == 1:
        return values[0]
    middle = 1
    while 2 * middle < len(values):
        middle *= 2
    return aligned(values[:middle]) + aligned(values[middle:])


def reference(values, num_segments):
    """A tree over segments that are as even as can be, of trees over their leaves."""
    count = min(num_segments, len(values))
    starts = [math.ceil(n * len(values) / count) for n in range(count + 1)]
    return aligned([aligned(values[start:stop]) for start, stop in pairwise(starts)])


def tree_over_ranks(tree, values, counts):
    nodes = []
    for taken in deal_nodes(tree, counts):
        own = []
        for leaf in chain(*taken):
            leaves.push(own, (range(leaf, leaf + 1), values[leaf]), float.__add__, tree)
        assert len(own) <= len(taken)
        nodes += own
    root = []
    for node in sorted(nodes, key=lambda node: node[0].start):
        leaves.push(root, node, float.__add__, tree)
    assert [node for node, _ in root] == [range(len(values))]
    return root[0][1]


@pytest.mark.parametrize("num_segments", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("num_leaves", [1, 2, 3, 5, 7, 8, 12, 16, 31, 60])
def test_tree_adds_in_one_order_for_every_number_of_ranks(num_leaves, num_segments):
    rng = random.Random(num_leaves)
    values = [rng.uniform(-1, 1) * 10 ** rng.randint(-8, 8) for _ in range(num_leaves)]
    tree = LeafTree(num_leaves=num_leaves, num_segments=num_segments)
    expected = reference(values, num_segments)
    for dp in range(1, num_leaves + 3):
        assert tree_over_ranks(tree, values, leaves.leaves_each(num_leaves, dp)) == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any), st.integers(1, 9))
def test_so_it_does_where_ranks_have_any_number_of_leaves(counts, num_segments):
    rng = random.Random(sum(counts))
    values = [rng.uniform(-1, 1) * 10 ** rng.randint(-8, 8) for _ in range(sum(counts))]
    tree = LeafTree(num_leaves=sum(counts), num_segments=num_segments)
    assert tree_over_ranks(tree, values, counts) == reference(values, num_segments)
    for taken, count in zip(deal_nodes(tree, counts), counts, strict=True):
        assert sum(map(len, taken)) == count


def most_nodes(tree, dp):
    """Of a rank. With k of them it sends k + 1 shares of a bucket; in an all-reduce it sends 2."""
    dealt = deal_evenly(tree, dp)
    assert max(sum(map(len, nodes)) for nodes in dealt) == -(-tree.num_leaves // dp)
    return max(map(len, dealt))


# Where a rank has more than three nodes: by the number of replicas.
MORE_NODES = {
    (96, 32): {3: 4, 9: 4},
    (480, 32): {3: 4, 5: 5, 6: 4, 9: 4, 10: 4, 11: 4, 13: 4, 17: 4, 18: 4, 22: 4, 23: 4},
}


@pytest.mark.parametrize(
    ("num_microbatches", "max_dp"),
    [
        *((12, dp) for dp in (4, 8)),
        *((16, dp) for dp in (4, 8, 16)),
        *((num, dp) for num in (96, 480) for dp in (4, 8, 16, 32)),
    ],
)
def test_a_rank_sends_what_an_all_reduce_does_at_the_largest_dp_and_its_halves(
    num_microbatches, max_dp
):
    """Elsewhere up to twice as much, but for some numbers of replicas out of 32."""
    num_leaves = leaves.choose_num_leaves(num_microbatches, max_dp)
    tree = LeafTree(num_leaves=num_leaves, num_segments=max_dp)
    found = {dp: most_nodes(tree, dp) for dp in range(1, max_dp + 1)}
    halves = {max_dp >> half for half in range(max_dp.bit_length())}
    assert {found[dp] for dp in halves if max_dp % dp == 0} == {1}
    more = {dp: nodes for dp, nodes in found.items() if nodes > 3}
    assert more == MORE_NODES.get((num_microbatches, max_dp), {})


@pytest.mark.parametrize(("num_leaves", "max_dp"), [(13, 4), (30, 8), (100, 16), (7, 4), (3, 4)])
def test_so_it_does_where_segments_are_uneven(num_leaves, max_dp):
    tree = LeafTree(num_leaves=num_leaves, num_segments=max_dp)
    assert {most_nodes(tree, max_dp >> half) for half in range(max_dp.bit_length())} == {1}


def test_one_loss_costs_a_second_node_and_not_a_third():
    for num_leaves, max_dp in ((12, 4), (64, 16), (128, 32), (480, 32)):
        assert most_nodes(LeafTree(num_leaves=num_leaves, num_segments=max_dp), max_dp - 1) == 2


def loads(tree, num_ranks):
    return tuple(sum(map(len, nodes)) for nodes in deal_evenly(tree, num_ranks))


@pytest.mark.parametrize(("num_leaves", "max_dp", "dp"), [(10, 6, 4), (13, 8, 5), (60, 8, 7)])
def test_loads_are_even_where_that_takes_two_nodes(num_leaves, max_dp, dp):
    """One would do, for ranks some of which have a leaf more than they need to."""
    tree = LeafTree(num_leaves=num_leaves, num_segments=max_dp)
    assert loads(tree, dp) == leaves.leaves_each(num_leaves, dp)


@pytest.mark.parametrize(("num_leaves", "max_dp", "dp"), [(36, 12, 7), (45, 32, 20), (48, 16, 9)])
def test_each_rank_has_a_leaf_though_fewer_nodes_would_do_without(num_leaves, max_dp, dp):
    tree = LeafTree(num_leaves=num_leaves, num_segments=max_dp)
    assert min(loads(tree, dp)) > 0


@pytest.mark.parametrize("num_segments", [1, 4, 5])
@pytest.mark.parametrize("num_leaves", [1, 6, 11, 12, 24])
def test_nodes_cover_their_span_in_order_and_are_few(num_leaves, num_segments):
    tree = LeafTree(num_leaves=num_leaves, num_segments=num_segments)
    for start in range(num_leaves):
        for stop in range(start, num_leaves + 1):
            nodes = tree.nodes(range(start, stop))
            assert [leaf for node in nodes for leaf in node] == list(range(start, stop))
            assert len(nodes) <= 2 * num_leaves.bit_length()
            if start == 0 < stop:
                assert tree.num_nodes(stop) == len(nodes)


def test_nodes_of_known_spans():
    one, four = LeafTree(num_leaves=12), LeafTree(num_leaves=12, num_segments=4)
    assert one.nodes(range(12)) == four.nodes(range(12)) == (range(12),)
    assert one.nodes(range(6)) == (range(4), range(4, 6))
    assert four.nodes(range(6)) == (range(6),)
    assert four.nodes(range(5)) == (range(3), range(3, 5))
    assert four.nodes(range(4, 12)) == (range(4, 5), range(5, 6), range(6, 12))
    assert LeafTree(num_leaves=11).nodes(range(8, 11)) == (range(8, 11),)
    assert four.nodes(range(3, 3)) == ()


def test_join_wants_siblings():
    tree = LeafTree(num_leaves=12)
    assert tree.join(range(2), range(2, 4)) == range(4)
    assert tree.join(range(2, 4), range(4, 6)) is None
    assert tree.join(range(8), range(8, 9)) is None
    assert tree.join(range(8), range(8, 12)) == range(12)
    assert tree.join(range(8), range(8, 8)) is None
    in_threes = LeafTree(num_leaves=12, num_segments=4)
    assert in_threes.join(range(2), range(2, 3)) == range(3)
    assert in_threes.join(range(2), range(2, 4)) is None
    assert in_threes.join(range(3), range(3, 6)) == range(6)
    assert in_threes.join(range(3), range(3, 5)) is None
    assert in_threes.join(range(3, 6), range(6, 9)) is None


@pytest.mark.parametrize(
    ("num_leaves", "dp"), [(12, 4), (12, 5), (12, 7), (3, 4), (1, 1), (24, 16)]
)
def test_counts_are_complete_and_even_within_one(num_leaves, dp):
    counts = leaves.leaves_each(num_leaves, dp)
    assert sum(counts) == num_leaves
    assert len(counts) == dp
    assert counts[0] == max(counts) <= min(counts) + 1


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
