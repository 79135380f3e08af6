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


def by_turns(forwards: Sequence[Task], backwards: Sequence[Task], warm_up: int) -> Iterator[Task]:
    """So many forwards, then one forward and one backward by turns, then the other backwards."""
    yield from forwards[:warm_up]
    for number, backward in enumerate(backwards):
        yield from forwards[warm_up + number : warm_up + number + 1]
        yield backward


def in_slot_order(what: Pass, stage: int, num_slots: int) -> tuple[Task, ...]:
    """One kind of pass of all slots through one stage."""
    return tuple(Task(what=what, slot=slot, stage=stage) for slot in range(num_slots))
