"""The operations of one rank, from what it computes and sends, and from its replica's slots."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from remesh.parallel.plan.schedules.operations import (
    Backward,
    BorderMessage,
    Exchange,
    Forward,
    InputBackward,
    KeepCompany,
    Operation,
    Overlap,
    Receive,
    Send,
    Stash,
    Step,
    WeightBackward,
)
from remesh.parallel.plan.schedules.rank_order import AtOnce, Task
from remesh.parallel.plan.schedules.replica_slots import Slot
from remesh.parallel.plan.schedules.wiring import Crossing, Half, ListEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersions:
    """Which version of a rank's weights each slot has, and which its backward makes, if any.

    Later slots have no older versions than earlier ones.
    """

    of: Callable[[int], int]
    made_by: Callable[[int], int | None]


def operations_of(places: Sequence[ListEntry], slots: Sequence[Slot]) -> Iterator[Operation]:
    """Of a rank whose weights are the same throughout."""
    for place in places:
        if isinstance(place, tuple):
            yield _visit(place, slots)
        else:
            yield from _transfer(place, slots)


def versioned_operations(
    places: Sequence[ListEntry], slots: Sequence[Slot], versions: WeightVersions
) -> Iterator[Operation]:
    """Of a rank that updates its weights as it goes, as late as what it computes next allows."""
    last_use = {versions.of(slot): slot for slot in range(len(slots))}
    due: list[Operation] = []
    for place in places:
        if not isinstance(place, tuple):
            yield from _transfer(place, slots)
            continue
        yield from due
        due = []
        [task] = place
        yield _pass(task, slots[task.slot], versions.of(task.slot))
        made = versions.made_by(task.slot) if task.what == "backward" else None
        if made is not None:
            is_in_use = last_use.get(made - 1, -1) > task.slot
            due = [*([Stash(version=made - 1)] if is_in_use else []), Step(version=made)]
    yield from due


def _visit(visit: AtOnce, slots: Sequence[Slot]) -> Operation:
    first, *others = (_pass(task, slots[task.slot], 0) for task in visit)
    if not others:
        return first
    [second] = others
    assert isinstance(first, Forward | KeepCompany), first
    assert isinstance(second, Backward | KeepCompany), second
    return Overlap(forward=first, backward=second)


def _pass(task: Task, slot: Slot, version: int) -> Operation:
    stage, microbatch, leaf = task.stage, slot.microbatch, slot.leaf
    completes = task.what in ("backward", "weight")
    ends_leaf = completes and slot.ends_leaf
    if microbatch is None or leaf is None:
        return KeepCompany(what=task.what, number=task.slot, stage=stage, ends_leaf=ends_leaf)
    match task.what:
        case "forward":
            return Forward(microbatch=microbatch, stage=stage, version=version)
        case "backward":
            return Backward(
                microbatch=microbatch, leaf=leaf, ends_leaf=ends_leaf, stage=stage, version=version
            )
        case "input":
            return InputBackward(microbatch=microbatch, stage=stage)
        case "weight":
            return WeightBackward(
                microbatch=microbatch, leaf=leaf, ends_leaf=ends_leaf, stage=stage
            )
        case _:
            assert_never(task.what)


def _transfer(halves: Sequence[Half], slots: Sequence[Slot]) -> Iterator[Operation]:
    """What is left of it without the messages of empty visits."""
    messages = {half.gives: _message(half.crossing, slots) for half in halves}
    peer, given, taken = halves[0].peer, messages.get(True), messages.get(False)
    if given and taken:
        yield Exchange(peer=peer, send=given, receive=taken)
    elif given:
        yield Send(peer=peer, message=given)
    elif taken:
        yield Receive(peer=peer, message=taken)


def _message(crossing: Crossing, slots: Sequence[Slot]) -> BorderMessage | None:
    is_gradient, border, slot = crossing
    microbatch = slots[slot].microbatch
    if microbatch is None:
        return None
    what: Literal["activation", "gradient"] = "gradient" if is_gradient else "activation"
    return BorderMessage(what=what, border=border, microbatch=microbatch)
