"""How far a rank has come, as a number that can be compared with that of every other rank.

Where ranks have lists of their own, the position in a list says nothing: the last stage of a
pipeline waits at its first operation while the first one is at its fourth. So an operation has the
number of those that have to be done before it, one after the other, on whatever rank. Who waits
then stands at a higher one than whom it waits for, and of ranks that wait for each other in a chain
the one that holds up all others stands lowest. A rank that stands at a message is as far as the one
at its other end, for it is not to be seen which of them holds it up.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.schedules.checks.deadlocks import given, taken
from remesh.parallel.plan.schedules.operations import Operation, Reduce, Step, Vote
from remesh.parallel.plan.schedules.wiring import ListEntry

_AtRank = tuple[int, int]  # rank, position in its list


def standings(schedules: Sequence[Sequence[Operation]]) -> tuple[tuple[int, ...], ...]:
    """The number of each operation, by rank; those at which all ranks meet have the same on all.

    `schedules` are the lists of all ranks of a pipeline, of one step.

    Cost: linear in the number of operations. Raises: ScheduleError if they wait for each other.
    """
    meetings, lengths = _Meetings(), []
    for rank, schedule in enumerate(schedules):
        lengths.append(len(schedule) - num_last(schedule))
        for place, operation in enumerate(schedule):
            if (message := given(operation)) is not None:
                meetings.gives[message] = rank, place
            if (message := taken(operation)) is not None:
                meetings.takes[message] = rank, place
    found = _numbers(meetings.of_each(lengths))
    end = _end(found)
    return tuple(
        ending(own, end, num_last(schedule)) for own, schedule in zip(found, schedules, strict=True)
    )


def wired_standings(
    lists: Sequence[Sequence[ListEntry]], num_filled: int, position: int
) -> tuple[tuple[int, ...], int]:
    """The same of one rank, of lists that are not yet operations: its numbers up to where all ranks
    meet, and the number of that.

    Slots from `num_filled` on are empty: nothing is sent for them.

    Cost: linear in the number of entries. Raises: as `standings`.
    """
    meetings, lengths = _Meetings(), []
    for rank, entries in enumerate(lists):
        place = 0
        for entry in entries:
            if isinstance(entry, tuple):
                place += 1
                continue
            sent = [half for half in entry if half.crossing[2] < num_filled]
            for half in sent:
                (meetings.gives if half.gives else meetings.takes)[half.crossing] = rank, place
            place += bool(sent)
        lengths.append(place)
    found = _numbers(meetings.of_each(lengths))
    return tuple(found[position]), _end(found)


def ending(numbers: Sequence[int], end: int, num_last: int) -> tuple[int, ...]:
    """A rank's own numbers, and then those of what all ranks carry out together, from `end` on."""
    return (*numbers, *range(end, end + num_last))


def num_last(schedule: Sequence[Operation]) -> int:
    """Operations at the end of a step that all ranks of a mesh carry out together."""
    return sum(map(_meets_all, schedule))


def _meets_all(operation: Operation) -> bool:
    return isinstance(operation, Reduce | Vote | Step)


@dataclass(slots=True)
class _Meetings:
    """Where each message is given and where it is taken."""

    gives: dict[Hashable, _AtRank] = field(default_factory=dict)
    takes: dict[Hashable, _AtRank] = field(default_factory=dict)

    def of_each(self, lengths: Iterable[int]) -> list[list[tuple[_AtRank, ...]]]:
        """For each operation of lists of these lengths those of peers that it has to meet."""
        met: list[list[tuple[_AtRank, ...]]] = [[()] * length for length in lengths]
        for message, giving in self.gives.items():
            taking = self.takes[message]
            met[giving[0]][giving[1]] += (taking,)
            met[taking[0]][taking[1]] += (giving,)
        return met


def _numbers(met: Sequence[Sequence[tuple[_AtRank, ...]]]) -> list[list[int]]:
    """Of each rank one for each operation before the end, each once its peers have come to it."""
    found: list[list[int]] = [[] for _ in met]
    waiting: dict[int, list[int]] = defaultdict(list)
    ready = deque(range(len(met)))
    while ready:
        rank = ready.popleft()
        own, theirs = found[rank], met[rank]
        number = own[-1] if own else -1
        for at in range(len(own), len(theirs)):
            missing = None
            for peer, place in theirs[at]:
                if len(found[peer]) < place:
                    missing = peer
                    break
                if place and found[peer][place - 1] > number:
                    number = found[peer][place - 1]
            if missing is not None:
                waiting[missing].append(rank)
                break
            number += 1
            own.append(number)
            if rank in waiting:
                ready.extend(waiting.pop(rank))
    if any(len(own) < len(theirs) for own, theirs in zip(found, met, strict=True)):
        raise ScheduleError("the ranks wait for each other")
    return found


def _end(found: Iterable[Sequence[int]]) -> int:
    """The number of what all ranks carry out together, after all else."""
    return 1 + max((number for own in found for number in own), default=-1)
