"""One rank's list, read from its start: each pass once, with what it needs, in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.checks.deadlocks import given, taken
from remesh.parallel.plan.schedules.operations import (
    Backward,
    BorderMessage,
    Exchange,
    Forward,
    InputBackward,
    KeepCompany,
    Operation,
    Overlap,
    Pass,
    Receive,
    Reduce,
    Send,
    Stash,
    Step,
    Vote,
    WeightBackward,
)
from remesh.parallel.plan.schedules.replica_slots import Slot

_SAID: dict[Pass, str] = {
    "forward": "forward",
    "backward": "backward",
    "input": "input's half of the backward",
    "weight": "weights' half of the backward",
}

_Done = tuple[Pass, int, int]  # what, through which stage, of which slot


@dataclass(slots=True, kw_only=True)
class RankCheck:
    """`have` are the messages that this rank could compute from, `made` those that it has computed
    itself; `added` counts the slots of each stage whose gradients have been added.
    """

    number: int
    pipeline: Pipeline
    slots: Sequence[Slot]
    slot_of: dict[int | None, int] = field(init=False)
    done: set[_Done] = field(default_factory=set)
    have: set[BorderMessage] = field(default_factory=set)
    made: set[BorderMessage] = field(default_factory=set)
    added: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.slot_of = {slot.microbatch: number for number, slot in enumerate(self.slots)}
        self.added = dict.fromkeys(self.pipeline.stages_of(self.number), 0)

    def take(self, operation: Operation) -> None:
        """Raises: ScheduleError."""
        match operation:
            case Forward(microbatch=microbatch):
                self._pass(operation, "forward", self._slot(operation, microbatch))
            case Backward(microbatch=microbatch):
                self._pass(operation, "backward", self._slot(operation, microbatch))
            case InputBackward(microbatch=microbatch):
                self._pass(operation, "input", self._slot(operation, microbatch))
            case WeightBackward(microbatch=microbatch):
                self._pass(operation, "weight", self._slot(operation, microbatch))
            case KeepCompany(what=what, number=number):
                is_empty = number < len(self.slots) and self.slots[number].microbatch is None
                self._want(is_empty, operation, "for a slot that is not empty")
                self._pass(operation, what, number)
            case Overlap(forward=forward, backward=backward):
                self.take(backward)  # which is not that of this forward
                self.take(forward)
            case Send() | Receive() | Exchange():
                self._transfer(operation)
            case Reduce() | Vote() | Step() | Stash():
                pass
            case _:
                assert_never(operation)

    def check_whole(self) -> None:
        """Raises: ScheduleError naming the first pass that has not come."""
        for stage in self.pipeline.stages_of(self.number):
            for slot in range(len(self.slots)):
                halved = ("input", stage, slot) in self.done
                wanted: tuple[Pass, ...] = ("forward", "weight" if halved else "backward")
                for what in wanted:
                    if (what, stage, slot) not in self.done:
                        raise ScheduleError(
                            f"rank {self.number}: the {_SAID[what]} of {self._named(slot)} through "
                            f"stage {stage} is missing"
                        )

    def _pass(self, operation: "_Passing", what: Pass, slot: int) -> None:
        stage = operation.stage
        self._want(stage in self.added, operation, "though its stage is on another rank")
        self._want((what, stage, slot) not in self.done, operation, "a second time")
        if what == "forward":
            self._needs(operation, "activation", stage - 1, slot)
            self._makes("activation", stage, slot)
        elif what == "weight":
            halved = ("input", stage, slot) in self.done
            self._want(halved, operation, "before the gradient of the input")
        else:
            other: Pass = "input" if what == "backward" else "backward"
            self._want(("forward", stage, slot) in self.done, operation, "before its forward")
            self._want((other, stage, slot) not in self.done, operation, "a second time")
            self._needs(operation, "gradient", stage, slot)
            self._makes("gradient", stage - 1, slot)
        if what in ("backward", "weight"):
            self._add(operation, slot)
        self.done.add((what, stage, slot))

    def _add(self, operation: "_Passing", slot: int) -> None:
        """Slots one after the other: so their gradients are added up, leaf by leaf."""
        expected, own = self.added[operation.stage], self.slots[slot]
        self._want(slot == expected, operation, f"where {self._named(expected)} is to be added")
        self.added[operation.stage] = expected + 1
        if isinstance(operation, Backward | WeightBackward):
            self._want(operation.leaf == own.leaf, operation, f"for another leaf than {own.leaf}")
        if isinstance(operation, Backward | WeightBackward | KeepCompany):
            ends = operation.ends_leaf == own.ends_leaf
            self._want(ends, operation, f"with ends_leaf other than {own.ends_leaf}")

    def _transfer(self, operation: Send | Receive | Exchange) -> None:
        sent, received = given(operation), taken(operation)
        self._want(sent is None or sent in self.made, operation, "before it has been computed")
        if received is not None:
            stage = received.border + (received.what == "activation")
            self._want(stage in self.added, operation, "though no stage here needs it")
            self._want(received not in self.have, operation, "a second time")
            self.have.add(received)

    def _slot(self, operation: Operation, microbatch: int) -> int:
        found = self.slot_of.get(microbatch)
        self._want(found is not None, operation, "which is no part of the step")
        return found or 0

    def _needs(self, operation: Operation, what: "_What", border: int, slot: int) -> None:
        microbatch = self.slots[slot].microbatch
        is_inside = 0 <= border < self.pipeline.num_stages - 1
        if is_inside and microbatch is not None:
            message = BorderMessage(what=what, border=border, microbatch=microbatch)
            self._want(message in self.have, operation, f"without {message}")

    def _makes(self, what: "_What", border: int, slot: int) -> None:
        """Where the neighbouring stage is on this rank too it has the message at once."""
        microbatch = self.slots[slot].microbatch
        if microbatch is not None:
            message = BorderMessage(what=what, border=border, microbatch=microbatch)
            self.made.add(message)
            self.have.add(message)

    def _named(self, slot: int) -> str:
        microbatch = self.slots[slot].microbatch
        return f"empty slot {slot}" if microbatch is None else f"microbatch {microbatch}"

    def _want(self, holds: bool, operation: Operation, otherwise: str) -> None:  # noqa: FBT001
        if not holds:
            raise ScheduleError(f"rank {self.number}: {operation} comes {otherwise}")


_What = Literal["activation", "gradient"]
_Passing = Forward | Backward | InputBackward | WeightBackward | KeepCompany
