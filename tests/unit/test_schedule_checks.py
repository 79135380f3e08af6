"""The check that takes the lists of all ranks of a pipeline: each fault is named."""

import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import (
    PUBLISHED,
    asynchronous_schedules_of,
    pipeline_of,
    schedules_of,
)
from remesh.parallel.plan.schedules.checks.check import check_asynchronous, check_schedules
from remesh.parallel.plan.schedules.checks.company import check_company
from remesh.parallel.plan.schedules.operations import (
    Backward,
    BorderMessage,
    Exchange,
    Forward,
    InputBackward,
    KeepCompany,
    Receive,
    Reduce,
    Send,
    Stash,
    Step,
    Vote,
    WeightBackward,
)
from remesh.parallel.plan.schedules.replica_slots import Slot, slots_alone

END = [Reduce(), Vote(), Step()]
ONE_RANK = Pipeline()
EMPTY = Slot(microbatch=None, leaf=None, ends_leaf=True)


def leaves_of_two(num_leaves):
    return [Slot(microbatch=n, leaf=n // 2, ends_leaf=n % 2 == 1) for n in range(2 * num_leaves)]


def alone():
    """One rank, two leaves of two microbatches."""
    [schedule] = schedules_of("1f1b", ONE_RANK, leaves_of_two(2))
    return list(schedule)


def activation(microbatch, border=0):
    return BorderMessage(what="activation", border=border, microbatch=microbatch)


def gradient(microbatch, border=0):
    return BorderMessage(what="gradient", border=border, microbatch=microbatch)


def backward(microbatch, stage=0):
    return Backward(microbatch=microbatch, leaf=microbatch, ends_leaf=True, stage=stage)


def kept(what, number=0):
    return KeepCompany(what=what, number=number, ends_leaf=what in ("backward", "weight"))


def check(schedules, num_microbatches=3, **shape):
    ranks = shape.pop("ranks", len(schedules))
    check_schedules(schedules, Pipeline(ranks=ranks, **shape), slots_alone(num_microbatches))


def two_ranks(num_microbatches=3):
    lists = schedules_of("1f1b", Pipeline(ranks=2), slots_alone(num_microbatches))
    return list(map(list, lists))


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


def test_a_rank_may_have_two_stages_and_needs_no_message_between_them():
    operations = [Forward(microbatch=0), Forward(microbatch=0, stage=1)]
    operations += [backward(0, stage=1), backward(0), *END]
    check([operations], 1, chunks=2)
    with pytest.raises(ScheduleError, match="without the activation of microbatch 0 at the end of"):
        check([operations[1:]], 1, chunks=2)


def test_forwards_may_run_ahead_and_backwards_may_be_halved():
    operations = alone()
    operations[1:3] = operations[2:0:-1]
    last = operations[-4]
    operations[-4:-3] = [
        InputBackward(microbatch=3),
        WeightBackward(microbatch=3, leaf=last.leaf, ends_leaf=last.ends_leaf),
    ]
    check_schedules([operations], ONE_RANK, leaves_of_two(2))


def swapped(first, second):
    operations = alone()
    operations[first], operations[second] = operations[second], operations[first]
    return operations


HALVES = [InputBackward(microbatch=3), WeightBackward(microbatch=3, leaf=1, ends_leaf=True)]


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (swapped(0, 1), "Backward.*microbatch=0.* comes before its forward"),
        (swapped(1, 3), "Backward.*microbatch=1.* comes before its forward"),
        (swapped(7, 8), "ends with Backward"),
        (swapped(8, 9), r"ends with Vote\(\), Reduce\(\)"),
        (swapped(9, 10), r"ends with Reduce\(\), Step\(version=0\), Vote\(\); expected Reduce"),
        ([Reduce(), *alone()], r"rank 0: Reduce\(\) comes before the end"),
        ([Stash(version=0), *alone()], r"rank 0: Stash\(version=0\) comes before the end"),
        (alone()[:-1], "ends with"),
        ([*alone(), Step()], "ends with"),
        (alone()[1:], "Backward.*microbatch=0.* comes before its forward"),
        (alone()[:6] + END, "rank 0: the forward of microbatch 3 through stage 0 is missing"),
        (alone()[:7] + END, "the backward of microbatch 3 through stage 0 is missing"),
        ([*alone()[:7], HALVES[0], *END], "the weights' half of the backward of microbatch 3"),
        ([*alone()[:7], HALVES[1], *END], "WeightBackward.* before the gradient of the input"),
        ([*alone()[:8], HALVES[0], *END], "InputBackward.* comes a second time"),
        ([*alone()[:7], HALVES[0], alone()[7], *END], r"Backward\(.*=3.* comes a second time"),
        ([*alone()[:7], *HALVES, HALVES[1], *END], "WeightBackward.* comes a second time"),
        ([*alone()[:2], *alone()[1:]], "Backward.*microbatch=0.* comes a second time"),
        ([alone()[0], *alone()], "Forward.*microbatch=0.* comes a second time"),
        ([Forward(microbatch=9), *alone()], "microbatch=9.* comes which is no part of the step"),
        ([Forward(microbatch=0, stage=1), *alone()], "stage=1.* though its stage is on another"),
        ([kept("forward"), *alone()], "KeepCompany.* comes for a slot that is not empty"),
        ([kept("forward", 4), *alone()], "KeepCompany.* comes for a slot that is not empty"),
        (END, "the forward of microbatch 0 through stage 0 is missing"),
    ],
)
def test_what_is_missing_doubled_or_too_early_is_named(broken, text):
    with pytest.raises(ScheduleError, match=text):
        check_schedules([broken], ONE_RANK, leaves_of_two(2))


@pytest.mark.parametrize("halved", [False, True])
def test_gradients_are_added_in_the_order_of_slots(halved):
    forwards = [Forward(microbatch=number) for number in range(3)]
    inputs = [InputBackward(microbatch=number) for number in range(3)] if halved else []
    kind = WeightBackward if halved else Backward
    backwards = [kind(microbatch=n, leaf=n, ends_leaf=True) for n in range(3)]
    check([[*forwards, *reversed(inputs), *backwards, *END]])
    text = "Backward.*microbatch=2.* comes where microbatch 1 is to be added"
    with pytest.raises(ScheduleError, match=text):
        check([[*forwards, *inputs, backwards[0], *backwards[:0:-1], *END]])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"leaf": 1}, "for another leaf than 0"),
        ({"ends_leaf": True}, "with ends_leaf other than False"),
    ],
)
def test_a_backward_has_its_own_leaf(change, text):
    operations = alone()
    operations[1] = replace(operations[1], **change)
    with pytest.raises(ScheduleError, match=text):
        check_schedules([operations], ONE_RANK, leaves_of_two(2))


def test_an_empty_slot_is_visited_like_any_other():
    slots = [Slot(microbatch=5, leaf=5, ends_leaf=True), EMPTY]
    [schedule] = map(list, schedules_of("1f1b", ONE_RANK, slots))
    assert schedule[2:4] == [kept("forward", 1), kept("backward", 1)]
    check_schedules([schedule], ONE_RANK, slots)
    for broken, text in (
        ([*schedule[:3], *END], "the backward of empty slot 1 through stage 0 is missing"),
        ([*schedule[:2], *schedule[3:]], "KeepCompany.* comes before its forward"),
        ([*schedule[:4], *schedule[3:]], "KeepCompany.* comes a second time"),
    ):
        with pytest.raises(ScheduleError, match=text):
            check_schedules([broken], ONE_RANK, slots)
    schedule[3] = replace(schedule[3], ends_leaf=False)
    with pytest.raises(ScheduleError, match="with ends_leaf other than True"):
        check_schedules([schedule], ONE_RANK, slots)


def test_each_rank_has_a_list():
    with pytest.raises(ScheduleError, match="lists: 1; expected one of each rank: 2"):
        check([alone()], ranks=2)


def test_activations_have_room():
    lists = schedules_of("gpipe", Pipeline(ranks=2), slots_alone(3))
    check_schedules(lists, Pipeline(ranks=2), slots_alone(3), (3, 3))
    with pytest.raises(ScheduleError, match="rank 1 has the activations of 3 passes at once and r"):
        check_schedules(lists, Pipeline(ranks=2), slots_alone(3), (3, 2))


def without(schedules, rank, wanted):
    found = [list(schedule) for schedule in schedules]
    found[rank].remove(next(one for one in found[rank] if wanted(one)))
    return found


def test_a_receive_without_its_send_is_found_and_a_send_without_its_receive():
    silent = two_ranks()
    assert silent[0][3] == Exchange(peer=1, send=activation(1), receive=gradient(0))
    silent[0][3] = Receive(peer=1, message=gradient(0))
    text = "rank 1 receives the activation of microbatch 1 at the end of stage 0 from rank 0, which"
    with pytest.raises(ScheduleError, match=f"{text} sends it 0 times, not 1"):
        check(silent)
    again = two_ranks()
    again[0].insert(1, again[0][1])
    with pytest.raises(ScheduleError, match=r"rank 0 sends .* to rank 1, which receives it 1 tim"):
        check(again)


def test_a_message_goes_once_and_only_where_it_is_needed():
    doubled = two_ranks()
    doubled[0].insert(2, doubled[0][1])
    doubled[1].insert(1, doubled[1][0])
    with pytest.raises(ScheduleError, match=r"rank 1: Receive\(.* comes a second time"):
        check(doubled)
    astray = list(map(list, schedules_of("gpipe", Pipeline(ranks=3), slots_alone(2))))
    astray[0].insert(2, Send(peer=2, message=activation(0)))
    astray[2].insert(0, Receive(peer=0, message=activation(0)))
    with pytest.raises(ScheduleError, match=r"rank 2: Receive\(.* though no stage here needs it"):
        check(astray, 2)


@pytest.mark.parametrize("peer", [0, 2, -1])
def test_a_peer_is_another_rank(peer):
    broken = two_ranks()
    broken[0][1] = replace(broken[0][1], peer=peer)
    with pytest.raises(ScheduleError, match=r"rank 0: Send.* has a peer that is not another rank"):
        check(broken)


def test_a_stage_computes_only_what_has_come():
    deaf = without(two_ranks(), 1, lambda one: isinstance(one, Receive))
    with pytest.raises(ScheduleError, match=r"rank 1: Forward\(microbatch=0, stage=1.* comes with"):
        check(deaf)
    deaf = without(two_ranks(), 0, lambda one: isinstance(one, Receive))
    with pytest.raises(ScheduleError, match=r"rank 0: Backward\(.*stage=0.* comes without the gra"):
        check(deaf)
    early = two_ranks()
    early[0][:2] = early[0][1::-1]
    with pytest.raises(ScheduleError, match=r"rank 0: Send\(.* comes before it has been computed"):
        check(early)


def test_ranks_that_wait_for_each_other_are_found():
    """Rank 0 wants a gradient before it gives the next activation, rank 1 the other way round."""
    first = [Forward(microbatch=0), Send(peer=1, message=activation(0))]
    first += [Receive(peer=1, message=gradient(0)), Forward(microbatch=1)]
    first += [Send(peer=1, message=activation(1)), backward(0)]
    first += [Receive(peer=1, message=gradient(1)), backward(1), *END]
    second = [Receive(peer=0, message=activation(0)), Forward(microbatch=0, stage=1)]
    second += [Receive(peer=0, message=activation(1)), Forward(microbatch=1, stage=1)]
    second += [backward(0, 1), Send(peer=0, message=gradient(0))]
    second += [backward(1, 1), Send(peer=0, message=gradient(1)), *END]
    text = (
        r"the ranks wait for each other: rank 0 for the gradient of microbatch 0 .* from rank 1, "
        "rank 1 for the activation of microbatch 1 at the end of stage 0 from rank 0"
    )
    with pytest.raises(ScheduleError, match=text):
        check([first, second], 2)


def test_a_send_may_wait_until_it_is_received():
    """Both give before they take: with room for a message on the way it would go well."""
    broken = two_ranks()
    exchange = broken[0][3]
    broken[0][3:4] = [
        Send(peer=1, message=exchange.send),
        Receive(peer=1, message=exchange.receive),
    ]
    check(broken)
    exchange = broken[1][3]
    assert isinstance(exchange, Exchange)
    broken[1][3:4] = [
        Send(peer=0, message=exchange.send),
        Receive(peer=0, message=exchange.receive),
    ]
    text = "rank 0 to give the activation of microbatch 1 .* to rank 1, rank 1 to give the gradient"
    with pytest.raises(ScheduleError, match=text):
        check(broken)
    broken[1][3:5] = broken[1][4:2:-1]
    check(broken)


def test_messages_that_cross_are_found():
    """A connection gives messages in the order in which they were sent."""
    crossed = list(map(list, schedules_of("gpipe", Pipeline(ranks=2), slots_alone(3))))
    sends = [n for n, one in enumerate(crossed[0]) if isinstance(one, Send)]
    crossed[0].insert(sends[1], crossed[0].pop(sends[0]))
    with pytest.raises(ScheduleError, match=r"which sends the activation of microbatch 1 .* first"):
        check(crossed)


@cache
def lists_of(name, ranks, num_microbatches):
    pipeline = pipeline_of(name, ranks, 2)
    return pipeline, schedules_of(name, pipeline, slots_alone(num_microbatches))


@given(st.sampled_from(sorted(PUBLISHED)), st.sampled_from([2, 3, 4]), st.integers(0, 10**6))
def test_no_operation_of_a_pipeline_can_be_left_out_doubled_or_come_elsewhere(name, ranks, seed):
    rng = random.Random(seed)
    pipeline, schedules = lists_of(name, ranks, 2 * ranks)
    rank = rng.randrange(ranks)
    place = rng.randrange(len(schedules[rank]))
    one = schedules[rank][place]
    for change in ([], [one, one]):
        broken = [list(schedule) for schedule in schedules]
        broken[rank][place : place + 1] = change
        with pytest.raises(ScheduleError):
            check_schedules(broken, pipeline, slots_alone(2 * ranks))
    other = rng.randrange(ranks)
    if other != rank:
        moved = [list(schedule) for schedule in schedules]
        moved[other].insert(rng.randrange(len(moved[other])), moved[rank].pop(place))
        with pytest.raises(ScheduleError):
            check_schedules(moved, pipeline, slots_alone(2 * ranks))


def versioned():
    """The first of four ranks, two updates."""
    pipeline = Pipeline(ranks=4)
    return pipeline, [list(one) for one in asynchronous_schedules_of("2bw", pipeline, 8, 4)]


@pytest.mark.parametrize(
    ("kind", "change", "text"),
    [
        (Stash, None, "Forward.*=7, .*version=0.* comes with weights that are not there"),
        (Stash, {"version": 3}, r"Stash\(version=3\) comes while 0 is the newest"),
        (Step, {"version": 2}, r"Step\(version=2\) comes after version 0"),
        (Step, None, r"Step\(version=2\) comes after version 0"),
        (Forward, {"version": 1}, "Forward.*version=1.* comes with weights that are not there"),
    ],
)
def test_weights_are_there_when_they_are_needed(kind, change, text):
    pipeline, lists = versioned()
    check_asynchronous(lists, pipeline, slots_alone(8))
    place = next(n for n, one in enumerate(lists[0]) if isinstance(one, kind))
    lists[0][place : place + 1] = [] if change is None else [replace(lists[0][place], **change)]
    with pytest.raises(ScheduleError, match=text):
        check_asynchronous(lists, pipeline, slots_alone(8))


def test_a_backward_has_the_weights_of_its_forward():
    pipeline, lists = versioned()
    places = [n for n, one in enumerate(lists[3]) if isinstance(one, Backward)]
    lists[3][places[-1]] = replace(lists[3][places[-1]], version=1)
    with pytest.raises(ScheduleError, match=r"Backward.* comes though its forward had 0"):
        check_asynchronous(lists, pipeline, slots_alone(8))


def test_replicas_that_share_state_visit_the_same_stages_in_the_same_order():
    pipeline = pipeline_of("interleaved", 2, 2)
    full, fewer = slots_alone(4), [*slots_alone(3), EMPTY]
    replicas = [schedules_of("interleaved", pipeline, slots) for slots in (full, fewer, full)]
    for position in range(2):
        check_company([lists[position] for lists in replicas])
    late = schedules_of("1f1b", Pipeline(ranks=2), slots_alone(4))
    text = r"visit \d of replica 1 is .*, that of replica 0 is .* they would wait for each other"
    with pytest.raises(ScheduleError, match=text):
        check_company([replicas[0][0], late[0]])
    with pytest.raises(ScheduleError, match="visit 14 of replica 1 is missing, that of replica 0"):
        check_company([replicas[0][0], replicas[1][0][:-5]])
    ended = [
        replace(one, ends_leaf=False) if one == kept("backward", 3) else one
        for one in schedules_of("1f1b", ONE_RANK, fewer)[0]
    ]
    with pytest.raises(
        ScheduleError,
        match="replica 1 is backward of stage 0, that of replica 0 is"
        " backward of stage 0, the end of a leaf",
    ):
        check_company([schedules_of("1f1b", ONE_RANK, full)[0], ended])


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
    for ranks, num_microbatches in ((4, 8), (16, 64)):
        schedules = [Counting(one) for one in lists_of("1f1b", ranks, num_microbatches)[1]]
        Counting.looks = 0
        check(schedules, num_microbatches)
        looks.append(Counting.looks / sum(map(len, schedules)))
    assert max(looks) < 6
