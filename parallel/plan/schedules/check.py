"""Whether the lists of all ranks are one step, with the gradient's fixed order of additions.

Every microbatch goes forward and backward once through each stage, each time with what it needs at
hand; every rank completes its leaves in the order in which the tree adds them, and ends with one
Reduce, Vote and Step; every message is sent and received, and no rank waits for ever. Nothing else
is asked, so that a schedule may order the rest as it likes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.schedules.deadlocks import check_messages
from remesh.parallel.plan.schedules.operations import (
    Backward,
    BorderMessage,
    Exchange,
    Forward,
    InputBackward,
    KeepCompany,
    Operation,
    Receive,
    Reduce,
    Send,
    Stash,
    Step,
    Vote,
    WeightBackward,
)

_StagePass = tuple[int, int]  # a microbatch of a stage: (stage, microbatch)

_END = (Reduce(), Vote(), Step())


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """What the lists of all ranks have to add up to.

    `in_rounds`: the ranks of a stage exchange every leaf as soon as it is there, so that all take
    part as often. Else each exchanges once, after its own leaves.
    """

    num_leaves: int
    microbatches_per_leaf: int
    num_stages: int = 1
    in_rounds: bool = False

    @property
    def num_microbatches(self) -> int:
        return self.num_leaves * self.microbatches_per_leaf


def check_schedules(schedules: Sequence[Sequence[Operation]], whole: WholeStep) -> None:
    """Cost: linear in the number of operations.

    Raises: ScheduleError naming the first thing that is missing, doubled, too early or waited for
        in vain.
    """
    ranks = [_Rank(number, whole) for number in range(len(schedules))]
    for rank, schedule in zip(ranks, schedules, strict=True):
        rank.check(schedule)
    _check_once("forward", [rank.forwards for rank in ranks], whole)
    _check_once("backward", [rank.backwards for rank in ranks], whole)
    _check_exchanges(ranks, whole)
    check_messages(schedules)


@dataclass(slots=True)
class _Rank:
    """One list, read from its start. `have` are the messages that this rank could compute from,
    `made` those that it has computed itself.
    """

    number: int
    whole: WholeStep
    forwards: set[_StagePass] = field(default_factory=set)
    backwards: set[_StagePass] = field(default_factory=set)
    leaf_ends: Counter[int] = field(default_factory=Counter)
    company: Counter[int] = field(default_factory=Counter)
    have: set[BorderMessage] = field(default_factory=set)
    made: set[BorderMessage] = field(default_factory=set)
    newest: dict[int, int] = field(default_factory=dict)

    def check(self, schedule: Sequence[Operation]) -> None:
        ending = tuple(schedule[-len(_END) :])
        if ending != _END:
            raise ScheduleError(
                f"rank {self.number} ends with {', '.join(map(str, ending))}; expected "
                f"{', '.join(map(str, _END))}"
            )
        for operation in schedule[: -len(_END)]:
            self._take(operation)
        if not self.leaf_ends and not self.company:
            raise ScheduleError(f"rank {self.number} has no part in the step")

    def _take(self, operation: Operation) -> None:
        match operation:
            case Forward():
                self._forward(operation)
            case Backward():
                self._backward(operation)
            case KeepCompany(stage=stage, ends_leaf=ends_leaf):
                self.company[stage] += ends_leaf
            case Send(message=message):
                self._want(message in self.made, operation, "before it has been computed")
            case Receive(message=message):
                self.have.add(message)
            case Reduce() | Vote() | Step():
                self._want(False, operation, "before the end of the list")
            case InputBackward() | WeightBackward() | Stash() | Exchange():
                self._want(False, operation, "though nobody checks it yet")
            case _:
                assert_never(operation)

    def _forward(self, operation: Forward) -> None:
        stage, microbatch = operation.stage, operation.microbatch
        self._check_range(operation, stage, microbatch)
        needed = BorderMessage(what="activation", border=stage - 1, microbatch=microbatch)
        self._want(stage == 0 or needed in self.have, operation, f"without {needed}")
        self._note(self.forwards, operation, (stage, microbatch))
        self._make(BorderMessage(what="activation", border=stage, microbatch=microbatch))

    def _backward(self, operation: Backward) -> None:
        stage, microbatch = operation.stage, operation.microbatch
        self._check_range(operation, stage, microbatch)
        needed = BorderMessage(what="gradient", border=stage, microbatch=microbatch)
        is_last = stage == self.whole.num_stages - 1
        self._want((stage, microbatch) in self.forwards, operation, "before its forward")
        self._want(is_last or needed in self.have, operation, f"without {needed}")
        self._note(self.backwards, operation, (stage, microbatch))
        self._check_leaf(operation)
        self._make(BorderMessage(what="gradient", border=stage - 1, microbatch=microbatch))

    def _check_leaf(self, operation: Backward) -> None:
        """Leaves one after the other, and the microbatches of each: so they are added up."""
        size, microbatch = self.whole.microbatches_per_leaf, operation.microbatch
        leaf, position = divmod(microbatch, size)
        ends = position == size - 1
        self._want(operation.leaf == leaf, operation, f"for another leaf than {leaf}")
        self._want(operation.ends_leaf == ends, operation, f"with ends_leaf other than {ends}")
        newest = self.newest.get(operation.stage, -1)
        goes_on = microbatch == newest + 1
        begins = newest < microbatch and (newest + 1) % size == 0
        in_order = goes_on if position else begins
        self._want(in_order, operation, f"after microbatch {newest}: leaves are added up in order")
        self._want(operation.stage not in self.company, operation, "after keeping company")
        self.newest[operation.stage] = microbatch
        self.leaf_ends[operation.stage] += ends

    def _check_range(self, operation: Operation, stage: int, microbatch: int) -> None:
        known = 0 <= stage < self.whole.num_stages
        known = known and 0 <= microbatch < self.whole.num_microbatches
        self._want(known, operation, "which is no part of the step")

    def _make(self, message: BorderMessage) -> None:
        self.made.add(message)
        self.have.add(message)

    def _note(self, seen: set[_StagePass], operation: Operation, part: _StagePass) -> None:
        self._want(part not in seen, operation, "a second time")
        seen.add(part)

    def _want(self, holds: bool, operation: Operation, otherwise: str) -> None:  # noqa: FBT001
        if not holds:
            raise ScheduleError(f"rank {self.number}: {operation} comes {otherwise}")


def _check_once(what: str, found: Sequence[set[_StagePass]], whole: WholeStep) -> None:
    """Whether each part of the step is found on one rank; `found` are those of each."""
    owners: dict[_StagePass, int] = {}
    for rank, parts in enumerate(found):
        for part in parts:
            first = owners.setdefault(part, rank)
            if first != rank:
                raise ScheduleError(f"{_said(what, part)} comes on rank {first} and rank {rank}")
    for stage in range(whole.num_stages):
        for microbatch in range(whole.num_microbatches):
            if (stage, microbatch) not in owners:
                raise ScheduleError(f"{_said(what, (stage, microbatch))} comes on no rank")


def _check_exchanges(ranks: Sequence[_Rank], whole: WholeStep) -> None:
    """Nobody waits in a collective for a rank that does not come."""
    for stage in range(whole.num_stages):
        there = [rank for rank in ranks if stage in rank.leaf_ends or stage in rank.company]
        most = max(rank.leaf_ends[stage] for rank in there)
        for rank in there:
            leaves, company = rank.leaf_ends[stage], rank.company[stage]
            expected = most - leaves if whole.in_rounds else int(leaves == 0)
            if company != expected:
                raise ScheduleError(
                    f"rank {rank.number} keeps company {company} times at stage {stage} with "
                    f"{leaves} leaves of its own; expected {expected}"
                )


def _said(what: str, part: _StagePass) -> str:
    stage, microbatch = part
    return f"the {what} of microbatch {microbatch} through stage {stage}"
