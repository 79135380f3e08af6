"""Whether the lists of one replica's ranks are one step, with the gradient's order of additions.

Every slot goes forward and backward once through each stage, the backward whole or in two halves,
each time with what it needs at hand; each stage adds the gradients of its slots in order; every
rank ends with one Reduce, Vote and Step; every message is sent and received, and no rank waits for
ever. Nothing else is asked, so that a schedule may order the rest as it likes.
"""

from collections.abc import Sequence

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.checks.deadlocks import check_messages
from remesh.parallel.plan.schedules.checks.kept import check_versions, peak_in_flight
from remesh.parallel.plan.schedules.checks.rank_check import RankCheck
from remesh.parallel.plan.schedules.operations import Operation, Reduce, Stash, Step, Vote
from remesh.parallel.plan.schedules.replica_slots import Slot

_END = (Reduce(), Vote(), Step())


def check_schedules(
    schedules: Sequence[Sequence[Operation]],
    pipeline: Pipeline,
    slots: Sequence[Slot],
    most_in_flight: Sequence[int] = (),
) -> None:
    """`most_in_flight` are the passes of which each rank has room for activations, if limited.

    Cost: linear in the number of operations.
    Raises: ScheduleError naming the first thing that is missing, doubled, too early, too much or
        waited for in vain.
    """
    for rank, schedule in enumerate(schedules):
        _check_end(rank, schedule)
    _check_passes(schedules, pipeline, slots)
    check_messages(schedules)
    for rank, most in enumerate(most_in_flight):
        peak = peak_in_flight(schedules[rank])
        if peak > most:
            raise ScheduleError(
                f"rank {rank} has the activations of {peak} passes at once and room for {most}"
            )


def check_schedule(
    rank: int, schedule: Sequence[Operation], pipeline: Pipeline, slots: Sequence[Slot]
) -> None:
    """One rank's list by itself. Whether its messages meet those of others is not seen.

    Cost: linear in the number of its operations. Raises: as `check_schedules`.
    """
    _check_end(rank, schedule)
    _check_rank(rank, schedule, pipeline, slots)


def check_asynchronous(
    schedules: Sequence[Sequence[Operation]], pipeline: Pipeline, slots: Sequence[Slot]
) -> None:
    """As `check_schedules`, for lists that update weights on their way, whenever they like.

    Raises: ScheduleError, also where a pass has weights that are not there, or are not those of
        its forward.
    """
    _check_passes(schedules, pipeline, slots)
    check_messages(schedules)
    for rank, schedule in enumerate(schedules):
        check_versions(rank, schedule)


def _check_end(rank: int, schedule: Sequence[Operation]) -> None:
    ending = tuple(schedule[-len(_END) :])
    if ending != _END:
        raise ScheduleError(
            f"rank {rank} ends with {', '.join(map(str, ending))}; expected "
            f"{', '.join(map(str, _END))}"
        )
    for operation in schedule[: -len(_END)]:
        if isinstance(operation, Reduce | Vote | Step | Stash):
            raise ScheduleError(f"rank {rank}: {operation} comes before the end of the list")


def _check_passes(
    schedules: Sequence[Sequence[Operation]], pipeline: Pipeline, slots: Sequence[Slot]
) -> None:
    if len(schedules) != pipeline.ranks:
        raise ScheduleError(f"lists: {len(schedules)}; expected one of each rank: {pipeline.ranks}")
    for rank, schedule in enumerate(schedules):
        _check_rank(rank, schedule, pipeline, slots)


def _check_rank(
    number: int, schedule: Sequence[Operation], pipeline: Pipeline, slots: Sequence[Slot]
) -> None:
    rank = RankCheck(number=number, pipeline=pipeline, slots=slots)
    for operation in schedule:
        rank.take(operation)
    rank.check_whole()
