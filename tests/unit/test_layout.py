from dataclasses import astuple

import pytest

from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.layout import Coordinate, Layout


def test_world_size_is_the_product_and_each_rank_has_its_own_place():
    layout = Layout(dp=2, pp=3, cp=2, ep=4, tp=2)
    assert layout.world_size == 24
    places = [astuple(layout.coordinate(rank)) for rank in range(24)]
    assert len(set(places)) == 24
    assert places == sorted(places)
    assert layout.coordinate(1) == Coordinate(dp=0, pp=0, cp=0, tp=1)
    assert layout.coordinate(23) == Coordinate(dp=1, pp=2, cp=1, tp=1)


def test_a_rank_outside_the_layout_is_refused():
    with pytest.raises(LayoutError, match="rank 4 is not one of the 4 ranks of dp=4"):
        Layout(dp=4).coordinate(4)


@pytest.mark.parametrize("degree", [0, -1])
def test_degrees_below_one_are_refused(degree):
    with pytest.raises(LayoutError, match=f"tp={degree} is no degree"):
        Layout(tp=degree)


@pytest.mark.parametrize("ep", [3, 16])
def test_an_expert_degree_takes_the_ranks_of_dp_and_cp(ep):
    with pytest.raises(LayoutError, match=rf"ep={ep} does not divide dp\*cp = 8"):
        Layout(dp=4, cp=2, tp=4, ep=ep)
    assert Layout(dp=4, cp=2, tp=4, ep=8).world_size == 32


@pytest.mark.parametrize("layout", [Layout(dp=2, pp=2, cp=2, ep=2, tp=2), Layout(dp=6, ep=3)])
def test_the_ranks_fall_into_groups_along_each_axis(layout):
    world = range(layout.world_size)
    for axis in ("dp", "pp", "cp", "tp"):
        groups = {layout.neighbours(rank, axis) for rank in world}
        assert sorted(rank for group in groups for rank in group) == list(world)
        assert {len(group) for group in groups} == {getattr(layout, axis)}
    for groups, size in (
        ({layout.data(rank) for rank in world}, layout.num_data),
        ({layout.experts(rank) for rank in world}, layout.ep),
    ):
        assert sorted(rank for group in groups for rank in group) == list(world)
        assert {len(group) for group in groups} == {size}


def test_data_are_the_ranks_with_the_same_share_of_the_model():
    layout = Layout(dp=2, pp=2, cp=2, ep=2, tp=2)
    assert layout.data(0) == layout.data(10) == (0, 2, 8, 10)
    assert [layout.data_position(rank) for rank in (0, 2, 8, 10)] == [0, 1, 2, 3]
    assert layout.experts(2) == (0, 2)
    assert layout.experts(10) == (8, 10)


def test_layouts_read_as_users_write_them():
    assert str(Layout(dp=4, tp=2)) == "dp=4 tp=2"
    assert str(Layout()) == "dp=1"
