"""Schedules as lists, and the check that takes those of all ranks."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.parallel.plan.dealing import Dealing, deal_in_rounds, deal_in_runs
from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.schedules.check import WholeStep, check_schedules
from remesh.parallel.plan.schedules.data_parallel import data_parallel_schedules
from remesh.parallel.plan.schedules.operations import (
    Backward,
    BorderMessage,
    Forward,
    KeepCompany,
    Receive,
    Reduce,
    Send,
    Step,
    Vote,
)

END = [Reduce(), Vote(), Step()]
ALONE = WholeStep(num_leaves=2, microbatches_per_leaf=2)


def alone():
    """One replica, two leaves of two microbatches."""
    [schedule] = data_parallel_schedules(deal_in_runs(2, 1), 2)
    return list(schedule)


def kept(number):
    return KeepCompany(what="backward", number=number, ends_leaf=True)


def activation(microbatch, border=0):
    return BorderMessage(what="activation", border=border, microbatch=microbatch)


def gradient(microbatch, border=0):
    return BorderMessage(what="gradient", border=border, microbatch=microbatch)


def backward(microbatch, size=1, stage=0):
    leaf, position = divmod(microbatch, size)
    return Backward(microbatch=microbatch, leaf=leaf, ends_leaf=position == size - 1, stage=stage)


def pipeline(num_stages, num_microbatches, size=1, *, warm_up=None):
    """One forward, one backward after a warm-up: a stage a rank."""
    last = num_stages - 1
    schedules = []
    for stage in range(num_stages):
        ahead = min(num_microbatches, last - stage if warm_up is None else warm_up)
        forwards = [forward_of(m, stage, last) for m in range(num_microbatches)]
        backwards = [backward_of(m, stage, last, size) for m in range(num_microbatches)]
        blocks = forwards[:ahead]
        for number in range(num_microbatches):
            blocks += [*forwards[ahead + number : ahead + number + 1], backwards[number]]
        schedules.append([operation for block in blocks for operation in block] + END)
    return schedules


def forward_of(microbatch, stage, last):
    found = [Forward(microbatch=microbatch, stage=stage)]
    if stage > 0:
        found.insert(0, Receive(peer=stage - 1, message=activation(microbatch, stage - 1)))
    if stage < last:
        found.append(Send(peer=stage + 1, message=activation(microbatch, stage)))
    return found


def backward_of(microbatch, stage, last, size):
    found = [backward(microbatch, size, stage)]
    if stage < last:
        found.insert(0, Receive(peer=stage + 1, message=gradient(microbatch, stage)))
    if stage > 0:
        found.append(Send(peer=stage - 1, message=gradient(microbatch, stage - 1)))
    return found


def two_stages(num_leaves=3, size=1):
    whole = WholeStep(num_leaves=num_leaves, microbatches_per_leaf=size, num_stages=2)
    return pipeline(2, num_leaves * size, size), whole


def test_a_rank_computes_its_leaves_in_order_and_the_last_backward_ends_each():
    assert alone() == [
        Forward(microbatch=0),
        Backward(microbatch=0, leaf=0, ends_leaf=False),
        Forward(microbatch=1),
        Backward(microbatch=1, leaf=0, ends_leaf=True),
        Forward(microbatch=2),
        Backward(microbatch=2, leaf=1, ends_leaf=False),
        Forward(microbatch=3),
        Backward(microbatch=3, leaf=1, ends_leaf=True),
        *END,
    ]


@given(
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from([deal_in_runs, deal_in_rounds]),
)
def test_data_parallel_schedules_are_legal(num_leaves, dp, size, deal):
    dealing = deal(num_leaves, dp)
    schedules = data_parallel_schedules(dealing, size)
    assert len(schedules) == dp
    check_schedules(
        schedules,
        WholeStep(num_leaves=num_leaves, microbatches_per_leaf=size, in_rounds=dealing.in_rounds),
    )


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 3))
def test_so_are_one_forward_one_backward_and_all_forwards_first(num_stages, num_leaves, size):
    whole = WholeStep(num_leaves=num_leaves, microbatches_per_leaf=size, num_stages=num_stages)
    check_schedules(pipeline(num_stages, num_leaves * size, size), whole)
    every = num_leaves * size
    check_schedules(pipeline(num_stages, every, size, warm_up=every), whole)


def test_a_rank_may_have_two_stages_and_need_no_message_between_them():
    operations = [Forward(microbatch=0), Forward(microbatch=0, stage=1)]
    operations += [backward(0, stage=1), backward(0), *END]
    whole = WholeStep(num_leaves=1, microbatches_per_leaf=1, num_stages=2)
    check_schedules([operations], whole)
    with pytest.raises(ScheduleError, match="without the activation of microbatch 0 at the end of"):
        check_schedules([operations[1:]], whole)


def test_forwards_may_run_ahead():
    operations = alone()
    operations[1], operations[2] = operations[2], operations[1]
    check_schedules([operations], ALONE)


def swapped(first, second):
    operations = alone()
    operations[first], operations[second] = operations[second], operations[first]
    return operations


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (swapped(0, 1), "Backward.*microbatch=0.* comes before its forward"),
        (swapped(1, 3), "Backward.*microbatch=1.* comes before its forward"),
        (swapped(7, 8), "ends with Backward"),
        (swapped(8, 9), r"ends with Vote\(\), Reduce\(\)"),
        (swapped(9, 10), r"ends with Reduce\(\), Step\(version=0\), Vote\(\); expected Reduce"),
        ([Reduce(), *alone()], r"rank 0: Reduce\(\) comes before the end"),
        (alone()[:-1], "ends with"),
        ([*alone(), Step()], "ends with"),
        (alone()[1:], "Backward.*microbatch=0.* comes before its forward"),
        (alone()[:6] + END, "the forward of microbatch 3 through stage 0 comes on no rank"),
        (alone()[:7] + END, "the backward of microbatch 3 through stage 0 comes on no rank"),
        ([*alone()[:2], *alone()[1:]], "Backward.*microbatch=0.* comes a second time"),
        ([alone()[0], *alone()], "Forward.*microbatch=0.* comes a second time"),
        ([Forward(microbatch=9), *alone()], "microbatch=9.* comes which is no part of the step"),
        ([Forward(microbatch=0, stage=1), *alone()], "stage=1.* which is no part of the step"),
        ([kept(0), *alone()], "microbatch=0.* comes after keeping company"),
        ([*alone()[:-3], kept(0), *END], "keeps company 1 times at stage 0 with 2"),
        (END, "rank 0 has no part in the step"),
    ],
)
def test_what_is_missing_doubled_or_too_early_is_named(broken, text):
    with pytest.raises(ScheduleError, match=text):
        check_schedules([broken], ALONE)


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ((1, 0, 2, 3), "microbatch=1.* after microbatch -1: leaves are added up in order"),
        ((0, 2, 1, 3), "microbatch=2.* after microbatch 0: leaves are added up in order"),
        ((2, 3, 0, 1), "microbatch=0.* after microbatch 3: leaves are added up in order"),
    ],
)
def test_leaves_are_completed_in_the_gradients_order(order, text):
    forwards = [Forward(microbatch=number) for number in range(4)]
    with pytest.raises(ScheduleError, match=text):
        check_schedules([[*forwards, *(backward(n, 2) for n in order), *END]], ALONE)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"leaf": 1}, "for another leaf than 0"),
        ({"ends_leaf": True}, "with ends_leaf other than F"),
    ],
)
def test_a_backward_has_its_own_leaf(change, text):
    operations = alone()
    operations[1] = replace(operations[1], **change)
    with pytest.raises(ScheduleError, match=text):
        check_schedules([operations], ALONE)


def test_a_microbatch_of_two_ranks_is_doubled():
    one = [Forward(microbatch=0), backward(0)]
    with pytest.raises(ScheduleError, match="through stage 0 comes on rank 0 and rank 1"):
        check_schedules([[*one, *END]] * 2, WholeStep(num_leaves=1, microbatches_per_leaf=1))


@pytest.mark.parametrize(("in_rounds", "company"), [(False, 1), (True, 2)])
def test_a_rank_without_a_leaf_keeps_the_others_company_as_often_as_they_exchange(
    in_rounds, company
):
    whole = WholeStep(num_leaves=2, microbatches_per_leaf=1, in_rounds=in_rounds)
    dealing = Dealing(num_leaves=2, portions=(range(2), range(0)), in_rounds=in_rounds)
    busy, idle = map(list, data_parallel_schedules(dealing, 1))
    kept_company = [one for one in idle[:-3] if isinstance(one, KeepCompany)]
    assert [one.what for one in kept_company] == ["forward", "backward"] * company
    check_schedules([busy, idle], whole)
    with pytest.raises(ScheduleError, match=f"rank 1 .*expected {company}|rank 1 has no part"):
        check_schedules([busy, idle[2:]], whole)


def without(schedules, rank, wanted):
    found = [list(schedule) for schedule in schedules]
    found[rank].remove(next(one for one in found[rank] if wanted(one)))
    return found


def test_a_receive_without_its_send_is_found_and_a_send_without_its_receive():
    schedules, whole = two_stages()
    check_schedules(schedules, whole)
    silent = without(
        schedules, 0, lambda one: isinstance(one, Send) and one.message.microbatch == 1
    )
    text = "rank 1 receives the activation of microbatch 1 at the end of stage 0 from rank 0, which"
    with pytest.raises(ScheduleError, match=f"{text} sends it 0 times, not 1"):
        check_schedules(silent, whole)
    again = [[*schedules[0][:2], schedules[0][1], *schedules[0][2:]], schedules[1]]
    with pytest.raises(
        ScheduleError, match=r"rank 0 sends .* to rank 1, which receives it 1 times"
    ):
        check_schedules(again, whole)


def test_a_stage_computes_only_what_has_come():
    schedules, whole = two_stages()
    deaf = without(schedules, 1, lambda one: isinstance(one, Receive))
    with pytest.raises(
        ScheduleError, match=r"rank 1: Forward\(microbatch=0, stage=1\) comes witho"
    ):
        check_schedules(deaf, whole)
    deaf = without(schedules, 0, lambda one: isinstance(one, Receive))
    with pytest.raises(
        ScheduleError, match=r"rank 0: Backward\(.*stage=0\) comes without the grad"
    ):
        check_schedules(deaf, whole)
    early = [[schedules[0][1], schedules[0][0], *schedules[0][2:]], schedules[1]]
    with pytest.raises(ScheduleError, match=r"rank 0: Send\(.* comes before it has been computed"):
        check_schedules(early, whole)


def test_ranks_that_wait_for_each_other_are_found():
    """Rank 0 wants a gradient before it gives the next activation, rank 1 the other way round."""
    schedules, whole = two_stages()
    first, second = schedules[0], pipeline(2, 3, warm_up=2)[1]
    plain = pipeline(2, 3, warm_up=0)[0]
    with pytest.raises(
        ScheduleError,
        match=r"the ranks wait for each other: rank 0 for the gradient of microbatch 0 .* from "
        "rank 1, rank 1 for the activation of microbatch 1 at the end of stage 0 from rank 0",
    ):
        check_schedules([plain, second], whole)
    check_schedules([first, schedules[1]], whole)


def test_messages_that_cross_are_found():
    """A connection gives messages in the order in which they were sent."""
    schedules, whole = two_stages()
    ahead = pipeline(2, 3, warm_up=3)
    sends = [n for n, one in enumerate(ahead[0]) if isinstance(one, Send)]
    crossed = list(ahead[0])
    moved = crossed.pop(sends[0])
    crossed.insert(sends[1], moved)
    assert sorted(map(str, crossed)) == sorted(map(str, ahead[0]))
    with pytest.raises(ScheduleError, match=r"which sends the activation of microbatch 1 .* first"):
        check_schedules([crossed, schedules[1]], whole)


@given(st.integers(2, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_no_operation_of_a_pipeline_can_be_left_out_or_doubled(num_stages, num_microbatches, seed):
    rng = random.Random(seed)
    schedules = pipeline(num_stages, num_microbatches)
    whole = WholeStep(num_leaves=num_microbatches, microbatches_per_leaf=1, num_stages=num_stages)
    rank = rng.randrange(num_stages)
    place = rng.randrange(len(schedules[rank]))
    one = schedules[rank][place]
    for change in ([], [one, one]):
        broken = [list(schedule) for schedule in schedules]
        broken[rank][place : place + 1] = change
        with pytest.raises(ScheduleError):
            check_schedules(broken, whole)


class Counting(list):
    """Counts the operations that are looked at."""

    looks = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        Counting.looks += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self):
        Counting.looks += len(self)
        return super().__iter__()


def test_each_operation_is_looked_at_a_few_times():
    looks = []
    for num_stages, num_microbatches in ((4, 8), (16, 64)):
        schedules = [Counting(one) for one in pipeline(num_stages, num_microbatches)]
        Counting.looks = 0
        check_schedules(
            schedules,
            WholeStep(num_leaves=num_microbatches, microbatches_per_leaf=1, num_stages=num_stages),
        )
        looks.append(Counting.looks / sum(map(len, schedules)))
    assert max(looks) < 6
