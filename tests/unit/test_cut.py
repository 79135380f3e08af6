"""Which part of the state a rank holds, and when all of it is there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.parallel.plan.cut import Cut, Held, held_by
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.pipeline import Pipeline

DIVISORS = {n: [d for d in range(1, n + 1) if n % d == 0] for n in range(1, 65)}


@st.composite
def cut_layouts(draw):
    """A layout and how many ranks of dp·cp share a copy: some of all, or all of them."""
    dp, cp, pp, tp = (draw(st.integers(1, most)) for most in (4, 3, 3, 2))
    ep = draw(st.sampled_from(DIVISORS[dp * cp]))
    replicas = DIVISORS[dp * cp // ep]
    shards = draw(st.sampled_from([1, *(ep * part for part in replicas)]))
    return Layout(dp=dp, cp=cp, pp=pp, tp=tp, ep=ep), shards


def parts(layout, shards, ranks=None):
    ranks = range(layout.world_size) if ranks is None else ranks
    return {part for rank in ranks for part in held_by(layout, shards, rank).parts}


@given(cut_layouts())
def test_all_ranks_together_hold_every_part(drawn):
    layout, shards = drawn
    cut = Cut.of(layout, shards)
    found = parts(layout, shards)
    assert found == set(cut.parts())
    assert cut.is_whole(found)
    assert len(set(map(cut.say, found))) == cut.num_parts


@given(cut_layouts())
def test_those_who_come_first_hold_every_part(drawn):
    layout, shards = drawn
    cut = Cut.of(layout, shards)
    first = [rank for rank in range(layout.world_size) if cut.is_first(layout, rank)]
    assert cut.is_whole(parts(layout, shards, first))
    for rank in set(range(layout.world_size)) - set(first):
        assert parts(layout, shards, [rank]) <= parts(layout, shards, range(rank))


@given(cut_layouts())
def test_what_is_held_is_told_in_numbers(drawn):
    layout, shards = drawn
    for rank in range(layout.world_size):
        assert_told(held_by(layout, shards, rank))


def assert_told(held):
    """Ranks tell each other as many numbers of each part, so that zeros may follow."""
    numbers = held.to_numbers()
    assert any(numbers)
    for told in (numbers, (*numbers, 0, 0, 0)):
        assert Held.from_numbers(told) == held
    assert isinstance(Held.from_numbers(numbers).cut.folded, bool)


PIPELINES = [
    Pipeline(ranks=2),
    Pipeline(ranks=2, chunks=2),
    Pipeline(ranks=2, chunks=2, folded=True),
    Pipeline(ranks=2, layers=(3, 5)),
    Pipeline(ranks=2, chunks=3, layers=(1, 2, 3, 4, 5, 6)),
]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_so_is_how_layers_lie_on_a_pipeline(pipeline):
    layout = Layout(dp=2, pp=2)
    cut = Cut.of(layout, 2, 64, pipeline)
    assert cut.pipeline == pipeline
    for rank in range(layout.world_size):
        assert_told(cut.held_by(layout, rank))


def test_cuts_of_different_pipelines_differ_and_nothing_is_kept_between_them():
    cuts = [Cut.of(Layout(pp=2), 1, 64, pipeline) for pipeline in PIPELINES]
    assert len(set(cuts)) == len(cuts)
    assert {one.kept(other) for one in cuts for other in cuts if one != other} == {0.0}


def test_a_rank_alone_has_all_layers_whatever_pipeline_was_wished():
    assert Cut.of(Layout(dp=2), 2, 64, Pipeline(chunks=2)) == Cut.of(Layout(dp=2), 2, 64)


def test_a_pipeline_of_other_ranks_than_pp_is_refused():
    with pytest.raises(LayoutError, match="a pipeline with ranks=3 is none of dp=2 pp=2; use 2"):
        Cut.of(Layout(dp=2, pp=2), 1, 64, Pipeline(ranks=3))


@pytest.mark.parametrize(
    ("layout", "shards", "alive"),
    [
        (Layout(dp=2, pp=2), 1, (0, 2)),  # one stage only
        (Layout(dp=4, ep=2), 1, (0, 2)),  # one half of the experts only
        (Layout(dp=4, ep=2), 4, (0, 1, 2)),
        (Layout(tp=2), 1, (1,)),
    ],
)
def test_a_part_that_nobody_holds_is_missed(layout, shards, alive):
    assert not Cut.of(layout, shards).is_whole(parts(layout, shards, alive))


def test_expert_shards_lie_over_what_experts_leave_of_dp_and_cp():
    layout = Layout(dp=4, cp=2, ep=2)
    assert Cut.of(layout, 8) == Cut(ep=2, shards=8, expert_shards=4)
    assert Cut.of(layout, 1) == Cut(ep=2, shards=1, expert_shards=1)
    assert held_by(layout, 8, 5).parts == ((0, 0, 0, 5), (1, 0, 0, 1, 2))


def test_parts_are_named():
    cut = Cut(pp=2, tp=2, ep=2, shards=4, expert_shards=2)
    assert cut.say((0, 1, 0, 3)) == "shard 3 of 4 of tensor part 0 of 2 of stage 1 of 2"
    assert cut.say((1, 0, 1, 1, 0)) == (
        "shard 0 of 2 of expert part 1 of 2 of tensor part 1 of 2 of stage 0 of 2"
    )
    assert str(Held()) == "all of it"
