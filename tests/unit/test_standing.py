"""Where ranks stand in lists of their own: who holds up the others stands lowest."""

import itertools

import pytest

from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import (
    PUBLISHED,
    legal_schedule,
    pipeline_of,
    schedules_of,
)
from remesh.parallel.plan.schedules.checks.deadlocks import given, taken
from remesh.parallel.plan.schedules.operations import Reduce, Step, Transfer, Vote
from remesh.parallel.plan.schedules.replica_slots import slots_alone
from remesh.parallel.plan.schedules.timing.standings import ending, num_last, standings

MOST = 10**6
CASES = [
    (name, ranks, number)
    for name, ranks, number in itertools.product(PUBLISHED, (2, 3, 4), (1, 2, 3, 4, 6, 8))
    if legal_schedule(name, ranks, [number])[0] == name
]


class Mesh:
    """Replicas of a pipeline, each with lists of its own: who is where once one rank hangs."""

    def __init__(self, replicas, *, sends_wait):
        self.lists = [schedule for schedules in replicas for schedule in schedules]
        self.places = [0] * len(self.lists)
        self.sends_wait = sends_wait
        self.meets = {}
        for number, schedules in enumerate(replicas):
            for rank, schedule in enumerate(schedules, start=number * len(schedules)):
                for place, one in enumerate(schedule):
                    for way, message in (("give", given(one)), ("take", taken(one))):
                        self.meets[number, way, message] = rank, place
        self.size = len(replicas[0])

    def hang(self, rank, place):
        """All ranks go on as far as they can; this one stays at this operation."""
        most = [MOST] * len(self.lists)
        most[rank] = place
        moved = True
        while moved:
            moved = False
            for one, schedule in enumerate(self.lists):
                while self.places[one] < min(len(schedule), most[one]) and self.is_over(one):
                    self.places[one] += 1
                    moved = True

    def is_over(self, rank):
        operation = self.lists[rank][self.places[rank]]
        if isinstance(operation, Reduce | Vote):
            at = type(operation)
            return all(self.has_come_to(other, at) for other in range(len(self.lists)))
        partners = [("give", taken(operation))]
        if self.sends_wait:
            partners.append(("take", given(operation)))
        number = rank // self.size
        met = [self.meets[number, way, message] for way, message in partners if message]
        return all(self.places[peer] >= place for peer, place in met)

    def has_come_to(self, rank, kind):
        where = next(n for n, one in enumerate(self.lists[rank]) if isinstance(one, kind))
        return self.places[rank] >= where


def lists_of(name, ranks, microbatches):
    return schedules_of(name, pipeline_of(name, ranks, 2), slots_alone(microbatches))


def computing(schedule):
    """Where a rank hangs of itself, and not in what others have a part in."""
    together = Transfer | Reduce | Vote | Step
    return [place for place, one in enumerate(schedule) if not isinstance(one, together)]


def assert_lowest(replicas, numbers, rank, place, *, sends_wait):
    mesh = Mesh(replicas, sends_wait=sends_wait)
    mesh.hang(rank, place)
    assert mesh.places[rank] == place
    stand = {
        one: numbers[one][at] for one, at in enumerate(mesh.places) if at < len(mesh.lists[one])
    }
    others = {one: at for one, at in stand.items() if one != rank}
    assert len(others) == len(mesh.lists) - 1, "somebody ended a step that one hangs in"
    assert min(others.values()) > stand[rank], (rank, place, stand)


@pytest.mark.parametrize("sends_wait", [True, False])
@pytest.mark.parametrize(("name", "ranks", "microbatches"), CASES)
def test_whoever_hangs_anywhere_stands_below_all_that_wait_for_it(
    name, ranks, microbatches, sends_wait
):
    schedules = lists_of(name, ranks, microbatches)
    numbers = standings(schedules)
    for rank, schedule in enumerate(schedules):
        for place in computing(schedule):
            assert_lowest([schedules], numbers, rank, place, sends_wait=sends_wait)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_so_it_does_where_another_replica_has_less_to_do(ranks):
    """A rank that hangs amid three microbatches is behind those that are through with two."""
    replicas = [lists_of("1f1b", ranks, number) for number in (3, 2)]
    numbers = [standings(schedules) for schedules in replicas]
    fullest = numbers[0][0]
    ended = [ending(own, fullest, num_last(replicas[0][0])) for one in numbers for own in one]
    for rank in range(2 * ranks):
        for place in computing(replicas[rank // ranks][rank % ranks]):
            assert_lowest(replicas, ended, rank, place, sends_wait=False)


def test_a_rank_alone_counts_its_operations():
    (numbers,) = standings(schedules_of("1f1b", Pipeline(), slots_alone(2)))
    assert numbers == tuple(range(len(numbers)))


def test_all_ranks_meet_at_the_same_numbers():
    schedules = lists_of("zb-h1", 4, 8)
    ends = {
        tuple(
            n for n, one in zip(own, schedule, strict=True) if isinstance(one, Reduce | Vote | Step)
        )
        for own, schedule in zip(standings(schedules), schedules, strict=True)
    }
    assert len(ends) == 1
