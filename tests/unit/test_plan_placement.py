"""Ranks on devices: nodes in one piece, tp groups on one node, local ranks by device."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.orchestrator.plan.placement import Device, keeping_stages, local_ranks, place
from remesh.orchestrator.plan.rung import Rung, Unit
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.layout import Layout


def devices(nodes, **values):
    """One device for each letter, numbered on its node in the order of appearance."""
    return [
        Device(node=node, index=nodes[:at].count(node), **values) for at, node in enumerate(nodes)
    ]


def mesh(*, on_one_node=True, **degrees):
    layout = Layout(**degrees)
    return Rung(layout=layout, unit=Unit(workers=layout.tp, on_one_node=on_one_node))


def nodes_of(placement):
    return "".join(device.node for device in placement.devices)


def test_bundles_that_come_interleaved_give_consecutive_ranks_and_whole_tp_groups():
    placement = place(devices("ABBBBAAA"), mesh(dp=2, tp=4))
    assert nodes_of(placement) == "AAAABBBB"
    assert placement.warnings == ()


def test_a_tp_group_that_would_straddle_nodes_is_refused_with_the_numbers():
    with pytest.raises(UserError, match="1 group of 8 devices on one node each, and there is roo"):
        place(devices("AAAABBBB"), mesh(tp=8))


def test_a_tp_group_may_straddle_nodes_where_that_is_asked_for_and_is_warned_of():
    placement = place(devices("ABABABAB"), mesh(tp=8, on_one_node=False))
    assert nodes_of(placement) == "AAAABBBB"
    assert "costs speed" in placement.warnings[0]


def test_devices_that_make_no_whole_group_are_left_out():
    placement = place(devices("AAABBBCC"), mesh(dp=3, tp=2))
    assert nodes_of(placement) == "AABBCC"
    with pytest.raises(UserError, match=r"4 groups of 2 .* room for 3"):
        place(devices("AAABBBCC"), mesh(dp=4, tp=2))


def test_too_few_devices_are_told_with_both_numbers():
    with pytest.raises(UserError, match="dp=4 needs 4 devices and there are 3"):
        place(devices("AAB"), mesh(dp=4))


def test_nodes_of_a_domain_are_neighbours_and_the_head_comes_first_in_its_own():
    offered = [
        *devices("A", domain="rack-2"),
        *devices("B", domain="rack-1"),
        *devices("C", domain="rack-2", head=True),
        *devices("D", domain="rack-1"),
    ]
    assert nodes_of(place(offered, mesh(dp=4))) == "BDCA"


def test_stages_of_a_pipeline_are_on_one_node_or_in_one_domain_if_they_can_be():
    placed = place(devices("AAABBBCC"), mesh(dp=4, pp=2))
    assert nodes_of(placed) == "AAABBBCC"  # one pipeline alone straddles two nodes
    assert nodes_of(place(devices("AAABBBB"), mesh(dp=3, pp=2))) == "AABBBB"
    racks = [
        *devices("ABC", domain="rack-1"),
        *devices("DEF", domain="rack-2"),
        *devices("GH", domain="rack-3"),
    ]
    assert nodes_of(place(racks, mesh(dp=4, pp=2))) == "ABCFDEGH"
    assert nodes_of(place(racks, mesh(dp=3, pp=2))) == "ABDEGH"
    assert nodes_of(place(racks, mesh(dp=2, pp=4))) == "ABCDEFGH"
    groups = place(devices("AAAABBBBCCCC"), mesh(dp=2, pp=3, tp=2))
    assert nodes_of(groups) == "AAAABBBBCCCC"


def test_who_has_a_stage_keeps_it_within_its_pipeline():
    piped = mesh(dp=2, pp=2, tp=2)
    assert keeping_stages(piped, [None] * 8) == list(range(8))
    moved = [1, 1, None, None, 0, 0, 1, 1]
    assert keeping_stages(piped, moved) == [2, 3, 0, 1, 4, 5, 6, 7]
    both = [1, 1, 1, 1, 1, 1, 0, 0]
    assert keeping_stages(piped, both) == [2, 3, 0, 1, 6, 7, 4, 5]
    assert keeping_stages(mesh(pp=4), [1, 2, 3, None]) == [3, 0, 1, 2]


def test_local_ranks_follow_the_devices_in_whatever_order_they_were_handed_out():
    handed_out = [Device(node="A", index=index) for index in (3, 1, 0, 2)]
    assert local_ranks(handed_out) == (3, 1, 0, 2)
    placed = place(handed_out, mesh(dp=4)).devices
    assert [device.index for device in placed] == [0, 1, 2, 3]
    assert local_ranks(placed) == (0, 1, 2, 3)


def test_local_ranks_leave_no_gap_where_a_device_is_not_used():
    assert local_ranks([Device(node="A", index=5), Device(node="A", index=2)]) == (1, 0)


def test_two_workers_on_one_device_are_refused():
    with pytest.raises(UserError, match="two workers on A have the same device, 1"):
        place([Device(node="A", index=1), Device(node="A", index=1)], mesh(dp=2))


@given(st.text("ABCD", min_size=1, max_size=40), st.integers(1, 4))
def test_each_group_is_on_one_node_and_each_node_in_one_piece(nodes, tp):
    offered = devices(nodes)
    groups = sum(nodes.count(node) // tp for node in set(nodes))
    if not groups:
        return
    placed = place(offered, mesh(dp=groups, tp=tp)).devices
    assert len(set(placed)) == len(placed)
    for first in range(0, len(placed), tp):
        assert len({device.node for device in placed[first : first + tp]}) == 1
    runs = [a for a, b in itertools.pairwise(placed) if a.node != b.node]
    assert len(runs) == len({device.node for device in placed}) - 1
