"""Who computes which leaves: every one once, in the tree's order, whatever the speeds."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.parallel.plan.dealing import deal_in_rounds, deal_in_runs
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.leaves import LeafTree, leaves_each

WAYS = [deal_in_runs, deal_in_rounds]
LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("num_leaves", "dp"), [(12, 1), (12, 4), (7, 5), (3, 8), (8, 3)])
def test_every_leaf_is_some_replicas_and_nobody_waits_for_a_message_that_does_not_come(
    way, num_leaves, dp
):
    dealing = way(LeafTree(num_leaves=num_leaves, num_segments=4), dp)
    assert sorted(chain(*dealing.portions)) == list(range(num_leaves))
    assert [len(own) for own in dealing.portions] == [*leaves_each(num_leaves, dp)]
    exchanges = {len(own) + dealing.num_idle(n) for n, own in enumerate(dealing.portions)}
    assert min(exchanges) >= 1
    if dealing.in_rounds:
        assert len(exchanges) == 1


def test_even_portions_are_runs_or_every_so_manieth_leaf():
    tree = LeafTree(num_leaves=7, num_segments=3)
    assert deal_in_runs(tree, 3).portions == ((0, 1, 2), (3, 4), (5, 6))
    assert deal_in_rounds(tree, 3).portions == ((0, 3, 6), (1, 4), (2, 5))


def test_a_replica_in_the_place_of_more_gets_what_is_left_of_them():
    tree = LeafTree(num_leaves=12, num_segments=4)
    assert deal_in_runs(tree, 3).portions == ((0, 1, 2, 9), (3, 4, 5, 10), (6, 7, 8, 11))
    assert deal_in_runs(tree, 2).portions == (tuple(range(6)), tuple(range(6, 12)))


@given(LENGTHS, st.integers(1, 3))
def test_uneven_portions_are_as_long_as_they_should_be(counts, together):
    lengths = [count for count in counts for _ in range(together)]
    for way in WAYS:
        dealing = way(
            LeafTree(num_leaves=sum(lengths), num_segments=3),
            len(lengths),
            lengths,
            together=together,
        )
        assert [len(own) for own in dealing.portions] == lengths
        assert sorted(chain(*dealing.portions)) == list(range(sum(lengths)))
        for own in dealing.portions:
            assert list(own) == sorted(own)


@given(LENGTHS, st.integers(1, 3))
def test_the_leaves_of_rounds_come_in_the_trees_order(counts, together):
    lengths = [count for count in counts for _ in range(together)]
    dealing = deal_in_rounds(
        LeafTree(num_leaves=sum(lengths)), len(lengths), lengths, together=together
    )
    rounds = [dealing.round(number) for number in range(max(lengths))]
    assert [leaf for one in rounds for leaf in one if leaf is not None] == list(range(sum(lengths)))
    for member, length in enumerate(lengths):
        idle = [one[member] for one in rounds].count(None)
        assert idle == dealing.num_idle(member) == len(rounds) - length


@given(LENGTHS, st.integers(1, 4), st.sampled_from(WAYS))
def test_neighbours_that_have_tokens_of_the_same_rows_compute_a_part_each_of_the_same_leaves(
    lengths, parts, way
):
    whole = way(LeafTree(num_leaves=sum(lengths), num_segments=3), len(lengths), lengths)
    dealing = whole.in_parts(parts)
    assert dealing.tree == whole.tree
    for part in range(parts):
        members = range(part, len(lengths) * parts, parts)
        assert {dealing.part(member) for member in members} == {part}
        assert tuple(dealing.portions[member] for member in members) == whole.portions
        assert [dealing.num_idle(m) for m in members] == list(
            map(whole.num_idle, range(len(lengths)))
        )


@pytest.mark.parametrize(
    ("parts", "together", "leaves", "left"),
    [(2, 2, 8, 1), (4, 2, 8, 2), (2, 4, 4, 1), (1, 2, 4, 1)],
)
def test_experts_are_on_ranks_of_one_row_first_and_then_on_those_of_more(
    parts, together, leaves, left
):
    """Who has all tokens of a leaf between them adds one gradient of it; who has some, a part."""
    run = max(1, together // parts)
    runs = deal_in_runs(LeafTree(num_leaves=8), 4, together=run).in_parts(parts).by_runs(together)
    assert (runs.tree.num_leaves, runs.parts, len(runs.portions)) == (
        leaves,
        left,
        4 * parts // together,
    )
    assert sorted(chain(*runs.portions)) == sorted([*range(leaves)] * left)


@given(LENGTHS, st.integers(2, 3), st.sampled_from(WAYS))
def test_neighbours_that_hold_the_experts_compute_neighbouring_leaves_at_the_same_time(
    counts, together, way
):
    lengths = [count for count in counts for _ in range(together)]
    dealing = way(
        LeafTree(num_leaves=sum(lengths), num_segments=3), len(lengths), lengths, together=together
    )
    runs = dealing.by_runs(together)
    assert (runs.tree.num_leaves, runs.unit) == (sum(counts), together)
    for group in range(len(counts)):
        own = dealing.portions[group * together : (group + 1) * together]
        for leaves, run in zip(zip(*own, strict=True), runs.portions[group], strict=True):
            assert leaves == tuple(range(run * together, (run + 1) * together))
            assert {runs.leaf(leaf) for leaf in leaves} == {run}
    assert sorted(chain(*runs.portions)) == list(range(sum(counts)))
    assert runs.leaf(None) is None


@pytest.mark.parametrize(
    ("arguments", "together", "text"),
    [
        ((6, 4), 4, "6 leaves cannot be dealt in runs of ep=4; use a multiple of it"),
        ((8, 6), 4, "6 ranks cannot be dealt in runs of ep=4"),
        ((8, 2, (5, 4)), 1, r"\(5, 4\) leaves each do not deal 8 leaves to 2 replicas"),
        ((8, 2, (9, -1)), 1, "use 2 counts that add up to 8"),
        ((8, 2, (8,)), 1, "use 2 counts"),
        (
            (8, 4, (3, 1, 2, 2)),
            2,
            "2 ranks that hold all experts between them have to have as many",
        ),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_dealt_is_refused(way, arguments, together, text):
    num_leaves, *others = arguments
    with pytest.raises(LayoutError, match=text):
        way(LeafTree(num_leaves=num_leaves), *others, together=together)
