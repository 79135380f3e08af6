"""What a rank computes, in order: what is left of a schedule when nothing is sent.

Each published schedule is given as the orders of its ranks. Slots stand for microbatches, so that
the same order serves every replica.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remesh.parallel.plan.schedules.operations import Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One pass of a slot's microbatch through one stage."""

    what: Pass
    slot: int
    stage: int


Order = Sequence[Task]
AtOnce = tuple[Task, ...]  # one pass, or two of other microbatches that begin and end together


def one_by_one(order: Order) -> tuple[AtOnce, ...]:
    """Each pass by itself."""
    return tuple((task,) for task in order)


def side_by_side(order: Order) -> tuple[AtOnce, ...]:
    """Each forward together with the whole backward right after it, if there is one."""
    visits: list[AtOnce] = []
    for task in order:
        before = visits[-1] if visits else ()
        if task.what == "backward" and [one.what for one in before] == ["forward"]:
            visits[-1] = (*before, task)
        else:
            visits.append((task,))
    return tuple(visits)


def by_turns(forwards: Sequence[Task], backwards: Sequence[Task], warm_up: int) -> Iterator[Task]:
    """So many forwards, then one forward and one backward by turns, then the other backwards."""
    yield from forwards[:warm_up]
    for number, backward in enumerate(backwards):
        yield from forwards[warm_up + number : warm_up + number + 1]
        yield backward


def in_slot_order(what: Pass, stage: int, num_slots: int) -> tuple[Task, ...]:
    """One kind of pass of all slots through one stage."""
    return tuple(Task(what=what, slot=slot, stage=stage) for slot in range(num_slots))
