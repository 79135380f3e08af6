import pytest

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.schedules import (
    Backward,
    Forward,
    KeepCompany,
    Portion,
    Reduce,
    Step,
    Vote,
    check_schedule,
    data_parallel_schedule,
)

PORTION = Portion(leaves=range(2, 4))


def schedule():
    return list(data_parallel_schedule(PORTION, 2))


def test_a_rank_computes_its_leaves_in_order_and_the_last_backward_ends_each():
    assert schedule() == [
        Forward(microbatch=4),
        Backward(microbatch=4, leaf=2, ends_leaf=False),
        Forward(microbatch=5),
        Backward(microbatch=5, leaf=2, ends_leaf=True),
        Forward(microbatch=6),
        Backward(microbatch=6, leaf=3, ends_leaf=False),
        Forward(microbatch=7),
        Backward(microbatch=7, leaf=3, ends_leaf=True),
        Reduce(),
        Vote(),
        Step(),
    ]


@pytest.mark.parametrize("leaves", [range(12), range(3, 3), range(5, 6), range(1, 9, 3)])
@pytest.mark.parametrize("num_idle", [0, 1, 2])
def test_the_data_parallel_schedule_is_legal(leaves, num_idle):
    portion = Portion(leaves=leaves, num_idle=num_idle)
    check_schedule(data_parallel_schedule(portion, 3), portion, 3)


def test_forwards_may_run_ahead():
    operations = schedule()
    operations[1], operations[2] = operations[2], operations[1]
    check_schedule(tuple(operations), PORTION, 2)


def swapped(first, second):
    operations = schedule()
    operations[first], operations[second] = operations[second], operations[first]
    return tuple(operations)


@pytest.mark.parametrize(
    "broken",
    [
        swapped(0, 1),  # backward before its forward
        swapped(1, 3),  # microbatches of a leaf in another order
        swapped(3, 5),  # leaves in another order
        swapped(7, 8),  # replicas added up before the last leaf
        swapped(8, 9),  # a vote on a gradient that is not there
        swapped(9, 10),  # an update that nobody voted for
    ],
)
def test_operations_out_of_order_are_found(broken):
    with pytest.raises(ScheduleError, match="comes before"):
        check_schedule(broken, PORTION, 2)


def test_company_is_kept_after_the_own_leaves():
    portion = Portion(leaves=range(1), num_idle=1)
    operations = list(data_parallel_schedule(portion, 1))
    assert operations[2] == KeepCompany(number=0)
    operations[1], operations[2] = operations[2], operations[1]
    with pytest.raises(ScheduleError, match="comes before"):
        check_schedule(tuple(operations), portion, 1)


def test_missing_doubled_and_foreign_operations_are_found():
    operations = schedule()
    with pytest.raises(ScheduleError, match=r"Forward\(microbatch=4\) comes 0 times, not 1"):
        check_schedule(tuple(operations[1:]), PORTION, 2)
    with pytest.raises(ScheduleError, match=r"Step\(version=0\) comes 2 times, not 1"):
        check_schedule((*operations, Step()), PORTION, 2)
    with pytest.raises(ScheduleError, match=r"Forward\(microbatch=9\) comes 1 times, not 0"):
        check_schedule((Forward(microbatch=9), *operations), PORTION, 2)
