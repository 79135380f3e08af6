import pytest

from remesh.parallel.errors import ScheduleError
from remesh.parallel.schedules import (
    Backward,
    Forward,
    Reduce,
    Step,
    Vote,
    check_schedule,
    data_parallel_schedule,
)

LEAVES = range(2, 4)


def schedule():
    return list(data_parallel_schedule(LEAVES, 2))


def test_a_rank_computes_its_leaves_in_order_and_reduces_each_once():
    assert schedule() == [
        Forward(microbatch=4),
        Backward(microbatch=4),
        Forward(microbatch=5),
        Backward(microbatch=5),
        Reduce(leaf=2),
        Forward(microbatch=6),
        Backward(microbatch=6),
        Forward(microbatch=7),
        Backward(microbatch=7),
        Reduce(leaf=3),
        Reduce(leaf=None),
        Vote(),
        Step(),
    ]


@pytest.mark.parametrize("leaves", [range(12), range(3, 3), range(5, 6)])
def test_the_data_parallel_schedule_is_legal(leaves):
    check_schedule(data_parallel_schedule(leaves, 3), leaves, 3)


def test_forwards_may_run_ahead():
    operations = schedule()
    operations[1], operations[2] = operations[2], operations[1]
    check_schedule(tuple(operations), LEAVES, 2)


def swapped(first, second):
    operations = schedule()
    operations[first], operations[second] = operations[second], operations[first]
    return tuple(operations)


@pytest.mark.parametrize(
    "broken",
    [
        swapped(0, 1),  # backward before its forward
        swapped(1, 3),  # microbatches of a leaf in another order
        swapped(3, 4),  # a leaf reduced before it is whole
        swapped(9, 10),  # replicas added up before the last leaf
        swapped(10, 11),  # a vote on a gradient that is not there
        swapped(11, 12),  # an update that nobody voted for
    ],
)
def test_operations_out_of_order_are_found(broken):
    with pytest.raises(ScheduleError, match="comes before"):
        check_schedule(broken, LEAVES, 2)


def test_missing_doubled_and_foreign_operations_are_found():
    operations = schedule()
    with pytest.raises(ScheduleError, match=r"Forward\(microbatch=4\) comes 0 times, not 1"):
        check_schedule(tuple(operations[1:]), LEAVES, 2)
    with pytest.raises(ScheduleError, match=r"Step\(version=0\) comes 2 times, not 1"):
        check_schedule((*operations, Step()), LEAVES, 2)
    with pytest.raises(ScheduleError, match=r"Forward\(microbatch=9\) comes 1 times, not 0"):
        check_schedule((Forward(microbatch=9), *operations), LEAVES, 2)
