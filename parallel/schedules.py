"""A step as data: the operations that one rank carries out, in order.

One engine interprets every schedule and knows none by name, so that a new schedule is a new list.
Microbatches are numbered through the whole global batch; leaf l consists of the microbatches
[l * g, (l + 1) * g) and finishes with its own Reduce.
"""

from collections import Counter
from dataclasses import dataclass

from remesh.parallel.errors import ScheduleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Compute a microbatch's loss."""

    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """Add a microbatch's gradients to those of its leaf."""

    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Put a finished leaf into the gradient tree; `leaf=None` adds up the trees of all replicas."""

    leaf: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Agree with all ranks on loss, token count, whether all is finite, and what comes next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Update the parameters. `version` is 0 where there is only one version of them."""

    version: int = 0


Operation = Forward | Backward | Reduce | Vote | Step


def data_parallel_schedule(leaves: range, microbatches_per_leaf: int) -> tuple[Operation, ...]:
    """A whole model on each rank: its leaves one after the other, then all together."""
    schedule: list[Operation] = []
    for leaf in leaves:
        for microbatch in microbatches_of(leaf, microbatches_per_leaf):
            schedule += [Forward(microbatch=microbatch), Backward(microbatch=microbatch)]
        schedule.append(Reduce(leaf=leaf))
    return (*schedule, Reduce(leaf=None), Vote(), Step())


def microbatches_of(leaf: int, microbatches_per_leaf: int) -> range:
    return range(leaf * microbatches_per_leaf, (leaf + 1) * microbatches_per_leaf)


def check_schedule(
    schedule: tuple[Operation, ...], leaves: range, microbatches_per_leaf: int
) -> None:
    """Checks that a schedule is a whole step with the gradient's fixed order of additions.

    Raises: ScheduleError naming the first operation that is missing, doubled or too early.
    """
    wanted = _wanted(leaves, microbatches_per_leaf)
    counts = Counter(schedule)
    for operation in (*wanted, *counts):
        if counts[operation] != (operation in wanted):
            raise ScheduleError(
                f"{operation} comes {counts[operation]} times, not {int(operation in wanted)}"
            )
    place = {operation: number for number, operation in enumerate(schedule)}
    for earlier, later in _orders(leaves, microbatches_per_leaf):
        if place[earlier] > place[later]:
            raise ScheduleError(f"{later} comes before {earlier}")


def _wanted(leaves: range, microbatches_per_leaf: int) -> dict[Operation, None]:
    return dict.fromkeys(data_parallel_schedule(leaves, microbatches_per_leaf))


def _orders(leaves: range, microbatches_per_leaf: int) -> list[tuple[Operation, Operation]]:
    """Pairs that must come in this order: all that the bits and the data flow depend on."""
    orders: list[tuple[Operation, Operation]] = [
        (Reduce(leaf=None), Vote()),
        (Vote(), Step()),
    ]
    previous: Operation | None = None
    for leaf in leaves:
        for microbatch in microbatches_of(leaf, microbatches_per_leaf):
            backward = Backward(microbatch=microbatch)
            orders.append((Forward(microbatch=microbatch), backward))
            orders += [(previous, backward)] if previous else []
            previous = backward
        assert previous
        orders.append((previous, Reduce(leaf=leaf)))
        previous = Reduce(leaf=leaf)
    orders += [(previous, Reduce(leaf=None))] if previous else []
    return orders
