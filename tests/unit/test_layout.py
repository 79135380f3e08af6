from dataclasses import astuple

import pytest

from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.layout import Coordinate, Layout, infer_layout


def test_world_size_is_the_product_and_each_rank_has_its_own_place():
    layout = Layout(dp=2, pp=3, cp=1, ep=2, tp=2)
    assert layout.world_size == 24
    places = [astuple(layout.coordinate(rank)) for rank in range(24)]
    assert len(set(places)) == 24
    assert places == sorted(places)
    assert layout.coordinate(1) == Coordinate(dp=0, pp=0, cp=0, ep=0, tp=1)
    assert layout.coordinate(23) == Coordinate(dp=1, pp=2, cp=0, ep=1, tp=1)


def test_a_rank_outside_the_layout_is_refused():
    with pytest.raises(LayoutError, match="rank 4 is not one of the 4 ranks of dp=4"):
        Layout(dp=4).coordinate(4)


def test_degrees_that_need_more_ranks_than_there_are_name_both_numbers():
    with pytest.raises(LayoutError, match=r"dp=8\*cp=8 = 64 ranks are needed, 8 are there"):
        infer_layout(8, dp=8, cp=8)


def test_dp_is_inferred_or_refused():
    with pytest.raises(LayoutError, match=r"8 ranks are not a multiple of pp=3\*tp=2 = 6"):
        infer_layout(8, dp=None, pp=3, tp=2)
    assert infer_layout(6, pp=3, tp=2) == Layout(dp=1, pp=3, tp=2)
    assert infer_layout(4) == Layout(dp=4)


@pytest.mark.parametrize("ep", [3, 16])
def test_an_expert_degree_never_makes_an_empty_axis(ep):
    with pytest.raises(LayoutError, match="8"):
        infer_layout(8, ep=ep)
    with pytest.raises(LayoutError, match="8 are there"):
        infer_layout(8, dp=8, ep=ep)


@pytest.mark.parametrize("degree", [0, -1])
def test_degrees_below_one_are_refused(degree):
    with pytest.raises(LayoutError, match=f"tp={degree} is no degree"):
        Layout(tp=degree)
    with pytest.raises(LayoutError, match=f"dp={degree} is no degree"):
        infer_layout(4, dp=degree)


def test_too_few_ranks_are_refused():
    with pytest.raises(LayoutError, match="a mesh of 0 ranks"):
        infer_layout(0)


def test_layouts_read_as_users_write_them():
    assert str(Layout(dp=4, tp=2)) == "dp=4 tp=2"
    assert str(Layout()) == "dp=1"
