"""When each operation of a pipeline would be carried out, were each kind to take the same time.

A send takes nothing of the rank that gives: its message is under way while it goes on. A vote is a
flush: nobody goes on before all have come to it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.schedules.checks.deadlocks import given, taken
from remesh.parallel.plan.schedules.operations import (
    Backward,
    BorderMessage,
    Exchange,
    Forward,
    InputBackward,
    Operation,
    Overlap,
    Receive,
    Send,
    Vote,
    WeightBackward,
)

Duration = int | Fraction

_Delivery = tuple[int, int, BorderMessage | None]  # from, to, what


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """How long a pass through one stage takes, by kind, and how long a message is under way.

    A whole backward takes as long as its two halves, and two passes at once as long as both.
    """

    forward: Duration = 1
    input: Duration = 1
    weight: Duration = 1
    message: Duration = 0

    @property
    def backward(self) -> Duration:
        return self.input + self.weight

    def of(self, operation: Operation) -> Duration:
        match operation:
            case Forward():
                return self.forward
            case Backward():
                return self.backward
            case InputBackward():
                return self.input
            case WeightBackward():
                return self.weight
            case Overlap(forward=forward, backward=backward):
                return self.of(forward) + self.of(backward)
            case _:
                return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An operation between two times."""

    operation: Operation
    start: Duration
    end: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What each rank does when."""

    ranks: tuple[tuple[Timed, ...], ...]

    @property
    def length(self) -> Duration:
        """Until the last rank is through."""
        return max(timed.end for rank in self.ranks for timed in rank)

    def busy(self, rank: int) -> Duration:
        return sum((timed.end - timed.start for timed in self.ranks[rank]), Fraction())

    def idle(self, rank: int) -> Duration:
        return self.length - self.busy(rank)

    @property
    def bubble(self) -> Fraction:
        """Share of all ranks' time in which they compute nothing, in [0, 1)."""
        idle = sum((self.idle(rank) for rank in range(len(self.ranks))), Fraction())
        return Fraction(idle) / Fraction(self.length * len(self.ranks))


_EVEN_COSTS = PassCosts()


def time_line(schedules: Sequence[Sequence[Operation]], costs: PassCosts = _EVEN_COSTS) -> Timeline:
    """Of the lists of all ranks of a pipeline, which may be several steps.

    Cost: linear in the number of operations.
    Raises: ScheduleError if a rank waits for ever; `check_schedules` says what for.
    """
    ranks = _AllTimes(schedules, costs)
    ranks.run()
    return Timeline(ranks=tuple(map(tuple, ranks.found)))


@dataclass(slots=True)
class _AllTimes:
    """All ranks at once, each up to where it waits.

    `there` says when messages on their way are there; `gave` counts, by rank, the operations that
    have sent what they send.
    """

    schedules: Sequence[Sequence[Operation]]
    costs: PassCosts
    found: list[list[Timed]] = field(init=False)
    gave: list[int] = field(init=False)
    there: dict[_Delivery, Duration] = field(default_factory=dict)
    waiting: dict[_Delivery, int] = field(default_factory=dict)
    voting: dict[int, Duration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found = [[] for _ in self.schedules]
        self.gave = [0 for _ in self.schedules]

    def run(self) -> None:
        ready = deque(range(len(self.schedules)))
        while ready:
            ready.extend(self._advance(ready.popleft()))
        if self.waiting or self.voting:
            raise ScheduleError("the ranks wait for each other")

    def _advance(self, rank: int) -> Iterator[int]:
        """Runs a rank until it waits or ends; the ranks that need not wait any longer for it."""
        schedule, found = self.schedules[rank], self.found[rank]
        while len(found) < len(schedule):
            operation = schedule[len(found)]
            start = found[-1].end if found else 0
            if isinstance(operation, Vote):
                yield from self._vote(rank, start)
                return
            yield from self._give(rank, operation, start)
            if isinstance(operation, Receive | Exchange):
                delivery = operation.peer, rank, taken(operation)
                if delivery not in self.there:
                    self.waiting[delivery] = rank
                    return
                start = max(start, self.there.pop(delivery))
            end = start + self.costs.of(operation)
            found.append(Timed(operation=operation, start=start, end=end))

    def _give(self, rank: int, operation: Operation, now: Duration) -> Iterator[int]:
        """Sends what it sends, once; the rank that has waited for it."""
        if isinstance(operation, Send | Exchange) and self.gave[rank] <= len(self.found[rank]):
            self.gave[rank] = len(self.found[rank]) + 1
            delivery = rank, operation.peer, given(operation)
            self.there[delivery] = now + self.costs.message
            if delivery in self.waiting:
                yield self.waiting.pop(delivery)

    def _vote(self, rank: int, now: Duration) -> Iterator[int]:
        """Goes on with all ranks once the last one has come."""
        self.voting[rank] = now
        if len(self.voting) == len(self.schedules):
            last = max(self.voting.values())
            for one in self.voting:
                self.found[one].append(Timed(operation=Vote(), start=last, end=last))
                yield one
            self.voting.clear()
