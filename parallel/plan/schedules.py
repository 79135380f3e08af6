"""A step as data: the operations that one rank carries out, in order.

One engine interprets every schedule and knows none by name, so that a new schedule is a new list.
Microbatches are numbered through the whole global batch; leaf l consists of the microbatches
[l * g, (l + 1) * g), and the backward of the last one completes it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from remesh.parallel.plan.errors import ScheduleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Compute a microbatch's loss."""

    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """Add a microbatch's gradients to those of its leaf; the last one sends the leaf on its way."""

    microbatch: int
    leaf: int
    ends_leaf: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCompany:
    """Take part in the collectives of a leaf that others compute; `number` tells several apart."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Finish the sums over the leaves of all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Agree with all ranks on loss, token count, whether all is finite, and what comes next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Update the parameters. `version` is 0 where there is only one version of them."""

    version: int = 0


Operation = Forward | Backward | KeepCompany | Reduce | Vote | Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """One replica's part of a step: its leaves in order, and how often it keeps others company."""

    leaves: Sequence[int]
    num_idle: int = 0


def data_parallel_schedule(portion: Portion, microbatches_per_leaf: int) -> tuple[Operation, ...]:
    """A whole model on each replica: its leaves one after the other, then all together."""
    schedule: list[Operation] = []
    for leaf in portion.leaves:
        microbatches = microbatches_of(leaf, microbatches_per_leaf)
        for number in microbatches:
            schedule.append(Forward(microbatch=number))
            ends_leaf = number == microbatches[-1]
            schedule.append(Backward(microbatch=number, leaf=leaf, ends_leaf=ends_leaf))
    schedule += [KeepCompany(number=number) for number in range(portion.num_idle)]
    return (*schedule, Reduce(), Vote(), Step())


def microbatches_of(leaf: int, microbatches_per_leaf: int) -> range:
    return range(leaf * microbatches_per_leaf, (leaf + 1) * microbatches_per_leaf)


def check_schedule(
    schedule: tuple[Operation, ...], portion: Portion, microbatches_per_leaf: int
) -> None:
    """Checks that a schedule is a whole step with the gradient's fixed order of additions.

    Raises: ScheduleError naming the first operation that is missing, doubled or too early.
    """
    wanted = dict.fromkeys(data_parallel_schedule(portion, microbatches_per_leaf))
    counts = Counter(schedule)
    for operation in (*wanted, *counts):
        if counts[operation] != (operation in wanted):
            raise ScheduleError(
                f"{operation} comes {counts[operation]} times, not {int(operation in wanted)}"
            )
    place = {operation: number for number, operation in enumerate(schedule)}
    for earlier, later in _orders(tuple(wanted)):
        if place[earlier] > place[later]:
            raise ScheduleError(f"{later} comes before {earlier}")


def _orders(plain: Sequence[Operation]) -> list[tuple[Operation, Operation]]:
    """Pairs that must come in this order: all that the bits and the data flow depend on.

    Only a forward may move, to anywhere before its own backward.
    """
    fixed = [operation for operation in plain if not isinstance(operation, Forward)]
    forwards = [
        (Forward(microbatch=operation.microbatch), operation)
        for operation in fixed
        if isinstance(operation, Backward)
    ]
    return [*pairwise(fixed), *forwards]
