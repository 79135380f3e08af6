"""Forwards and backwards that are computed side by side, where ranks share experts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.parallel.plan.dealing import deal_in_rounds
from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.leaves import LeafTree
from remesh.parallel.plan.schedules.catalogue import (
    PUBLISHED,
    most_in_flight,
    pipeline_of,
    schedules_of,
)
from remesh.parallel.plan.schedules.checks.check import check_schedules
from remesh.parallel.plan.schedules.checks.company import check_company
from remesh.parallel.plan.schedules.checks.kept import peak_in_flight
from remesh.parallel.plan.schedules.operations import (
    Backward,
    Forward,
    KeepCompany,
    Overlap,
    Receive,
    Send,
)
from remesh.parallel.plan.schedules.rank_lists import operations_of
from remesh.parallel.plan.schedules.rank_order import Task
from remesh.parallel.plan.schedules.replica_slots import slots_alone, slots_of
from remesh.parallel.plan.schedules.timing.drawing import draw
from remesh.parallel.plan.schedules.timing.timeline import PassCosts, time_line
from remesh.parallel.plan.schedules.wiring import wire

RANKS, MORE = st.integers(2, 6), st.integers(0, 6)


def lists_of(ranks, num_microbatches, *, shares_experts=True):
    pipeline = pipeline_of("dualpipe-v", ranks)
    slots = slots_alone(num_microbatches)
    return (
        pipeline,
        slots,
        schedules_of("dualpipe-v", pipeline, slots, shares_experts=shares_experts),
    )


def pairs_of(schedule):
    return [one for one in schedule if isinstance(one, Overlap)]


@given(RANKS, MORE)
def test_the_lists_are_a_step_and_keep_no_more_than_one_after_the_other(ranks, more):
    pipeline, slots, lists = lists_of(ranks, 2 * ranks + more)
    most = [most_in_flight("dualpipe-v", pipeline, rank, len(slots)) for rank in range(ranks)]
    check_schedules(lists, pipeline, slots, most)
    assert list(map(peak_in_flight, lists)) == most


@given(RANKS, MORE)
def test_all_whole_backwards_of_the_middle_have_a_forward_of_another_microbatch(ranks, more):
    lists = lists_of(ranks, 2 * ranks + more)[2]
    for rank, schedule in enumerate(lists):
        pairs = pairs_of(schedule)
        beyond, before = ranks - 1 - rank, rank + 1
        assert len(pairs) == 2 * (more + before) + beyond
        assert all(one.forward.microbatch != one.backward.microbatch for one in pairs)
        assert all(one.forward.stage != one.backward.stage for one in pairs)


@given(RANKS, MORE, st.integers(1, 5), st.integers(1, 5))
def test_ranks_idle_as_published(ranks, more, longer, weight):
    """(p - 1)(F&B + B - 3 W), where a forward beside a backward takes as long as both."""
    forward = weight + longer - 1
    costs = PassCosts(forward=forward, input=forward, weight=weight)
    line = time_line(lists_of(ranks, 2 * ranks + more)[2], costs)
    expected = (ranks - 1) * (forward + 2 * costs.backward - 3 * weight)
    assert {line.idle(rank) for rank in range(ranks)} == {expected}


def test_what_both_need_is_received_before_and_what_they_make_is_sent_after():
    schedule = lists_of(4, 8)[2][1]
    place = next(n for n, one in enumerate(schedule) if isinstance(one, Overlap))
    kinds = [type(one) for one in schedule]
    assert kinds[place - 1] is not Send
    assert kinds[place + 1] is not Receive


def test_where_no_experts_are_shared_and_in_other_schedules_passes_follow_each_other():
    assert not any(pairs_of(one) for one in lists_of(4, 12, shares_experts=False)[2])
    for name in sorted(PUBLISHED.keys() - {"dualpipe-v"}):
        pipeline, slots = pipeline_of(name, 4, 2), slots_alone(8)
        found = schedules_of(name, pipeline, slots, shares_experts=True)
        assert found == schedules_of(name, pipeline, slots)


def test_replicas_with_fewer_leaves_have_the_same_pairs_and_keep_company_in_both_halves():
    pipeline, lengths = pipeline_of("dualpipe-v", 2), (5, 2, 4)
    dealing = deal_in_rounds(LeafTree(num_leaves=sum(lengths)), len(lengths), lengths)
    replicas = []
    for member in range(len(lengths)):
        slots = slots_of(dealing, member, 1)
        replicas.append(schedules_of("dualpipe-v", pipeline, slots, shares_experts=True))
        check_schedules(replicas[-1], pipeline, slots)
    for position in range(2):
        check_company([lists[position] for lists in replicas])
    kinds = {(type(one.forward), type(one.backward)) for one in pairs_of(replicas[1][0])}
    assert {(KeepCompany, Backward), (KeepCompany, KeepCompany)} <= kinds


def test_a_pair_is_not_the_same_visit_as_its_halves_one_after_the_other():
    """Their gathers and gradients would come in another order."""
    schedule = lists_of(2, 4)[2][0]
    place = next(n for n, one in enumerate(schedule) if isinstance(one, Overlap))
    pair = schedule[place]
    apart = (*schedule[:place], pair.forward, pair.backward, *schedule[place + 1 :])
    with pytest.raises(ScheduleError, match="paired forward of stage"):
        check_company([apart, schedule])


def test_a_backward_beside_its_own_forward_is_refused():
    pipeline, slots, lists = lists_of(2, 4)
    schedule = list(lists[0])
    place = next(n for n, one in enumerate(schedule) if isinstance(one, Overlap))
    pair = schedule[place]
    own = replace(pair.backward, microbatch=pair.forward.microbatch, stage=pair.forward.stage)
    schedule[place] = replace(pair, backward=own)
    with pytest.raises(ScheduleError, match="before its forward"):
        check_schedules([schedule, lists[1]], pipeline, slots)


def test_two_passes_of_which_one_needs_the_other_wait_for_ever():
    pipeline = pipeline_of("1f1b", 2)
    there = [Task(what="forward", slot=0, stage=stage) for stage in (0, 1)]
    back = [Task(what="backward", slot=0, stage=stage) for stage in (0, 1)]
    with pytest.raises(ScheduleError, match="waits for what is never there"):
        wire([[(there[0], back[0])], [(there[1],), (back[1],)]], pipeline)


def test_a_pair_is_drawn_as_both():
    pipeline, _, lists = lists_of(2, 4)
    costs = PassCosts(forward=1, input=1, weight=1)
    cells = {
        cell.strip() for line in draw(time_line(lists, costs), pipeline).lines for cell in line
    }
    pair = pairs_of(lists[0])[0]
    assert f"F{pair.forward.microbatch}aB{pair.backward.microbatch}b" in cells
    assert isinstance(pair.forward, Forward)


def test_a_list_of_places_with_two_tasks_is_one_operation():
    tasks = Task(what="forward", slot=1, stage=0), Task(what="backward", slot=0, stage=1)
    [pair] = operations_of([tasks], slots_alone(2))
    assert pair == Overlap(
        forward=Forward(microbatch=1),
        backward=Backward(microbatch=0, leaf=0, ends_leaf=True, stage=1),
    )
