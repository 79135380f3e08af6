"""How far a rank has come, as a number that can be compared with that of every other rank.

Where ranks have lists of their own, the position in a list says nothing: the last stage of a
pipeline waits at its first operation while the first one is at its fourth. So an operation has the
number of those that have to be done before it, one after the other, on whatever rank. Who waits
then stands at a higher one than whom it waits for, and of ranks that wait for each other in a chain
the one that holds up all others stands lowest. A rank that stands at a message is as far as the one
at its other end, for it is not to be seen which of them holds it up.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

from remesh.parallel.plan.schedules.checks.deadlocks import given, taken
from remesh.parallel.plan.schedules.operations import BorderMessage, Operation, Reduce, Step, Vote

_AtRank = tuple[int, int]  # rank, position in its list


def standings(schedules: Sequence[Sequence[Operation]]) -> tuple[tuple[int, ...], ...]:
    """The number of each operation, by rank; those at which all ranks meet have the same on all.

    `schedules` are the lists of all ranks of a pipeline, of one step.

    Cost: linear in the number of operations. They have to be known to end.
    """
    found: list[list[int]] = [[] for _ in schedules]
    partners = _partners(schedules)
    waiting: dict[int, list[int]] = defaultdict(list)
    ready = deque(range(len(schedules)))
    while ready:
        rank = ready.popleft()
        own, schedule = found[rank], schedules[rank]
        while len(own) < len(schedule) and not _meets_all(schedule[len(own)]):
            others = partners.get((rank, len(own)), ())
            missing = next((one for one in others if len(found[one[0]]) < one[1]), None)
            if missing is not None:
                waiting[missing[0]].append(rank)
                break
            before = [found[peer][place - 1] for peer, place in others if place]
            own.append(1 + max([*before, *own[-1:]], default=-1))
            ready.extend(waiting.pop(rank, ()))
    end = 1 + max((number for own in found for number in own), default=-1)
    return tuple(
        (*own, *range(end, end + len(s) - len(own)))
        for own, s in zip(found, schedules, strict=True)
    )


def ending(own: Sequence[int], fullest: Sequence[int], num_last: int) -> tuple[int, ...]:
    """Its own numbers, but at the end, where all replicas meet, those of the fullest one.

    `num_last` operations are carried out by all ranks together.
    """
    return (*own[: len(own) - num_last], *fullest[len(fullest) - num_last :])


def num_last(schedule: Sequence[Operation]) -> int:
    """Operations at the end of a step that all ranks of a mesh carry out together."""
    return sum(map(_meets_all, schedule))


def _meets_all(operation: Operation) -> bool:
    return isinstance(operation, Reduce | Vote | Step)


def _partners(schedules: Sequence[Sequence[Operation]]) -> dict[_AtRank, list[_AtRank]]:
    """For each operation those of peers that it has to meet."""
    gives: dict[BorderMessage, _AtRank] = {}
    takes: dict[BorderMessage, _AtRank] = {}
    for rank, schedule in enumerate(schedules):
        for place, operation in enumerate(schedule):
            if (message := given(operation)) is not None:
                gives[message] = rank, place
            if (message := taken(operation)) is not None:
                takes[message] = rank, place
    met: dict[_AtRank, list[_AtRank]] = defaultdict(list)
    for message, giving in gives.items():
        met[giving].append(takes[message])
        met[takes[message]].append(giving)
    return met
