"""The schedule of replicas that each hold the whole model."""

from remesh.parallel.plan.dealing import Dealing
from remesh.parallel.plan.schedules.operations import (
    Backward,
    Forward,
    KeepCompany,
    LocalOperation,
    Reduce,
    Step,
    Vote,
)


def data_parallel_schedules(
    dealing: Dealing, microbatches_per_leaf: int
) -> tuple[tuple[LocalOperation, ...], ...]:
    """Of each replica: its leaves one after the other, then all together."""
    return tuple(
        _schedule(dealing, member, microbatches_per_leaf) for member in range(len(dealing.portions))
    )


def _schedule(
    dealing: Dealing, member: int, microbatches_per_leaf: int
) -> tuple[LocalOperation, ...]:
    schedule: list[LocalOperation] = []
    for leaf in dealing.portions[member]:
        first = leaf * microbatches_per_leaf
        microbatches = range(first, first + microbatches_per_leaf)
        for number in microbatches:
            schedule.append(Forward(microbatch=number))
            ends_leaf = number == microbatches[-1]
            schedule.append(Backward(microbatch=number, leaf=leaf, ends_leaf=ends_leaf))
    for number in range(dealing.num_idle(member) * microbatches_per_leaf):
        ends_leaf = (number + 1) % microbatches_per_leaf == 0
        schedule.append(KeepCompany(what="forward", number=number))
        schedule.append(KeepCompany(what="backward", number=number, ends_leaf=ends_leaf))
    return (*schedule, Reduce(), Vote(), Step())
