"""Where ranks stand in lists of their own: who holds up the others stands lowest."""

import itertools

import pytest
from counted import lines_run

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules import catalogue
from remesh.parallel.plan.schedules.catalogue import (
    PUBLISHED,
    legal_schedule,
    pipeline_of,
    schedule_of,
    schedules_of,
)
from remesh.parallel.plan.schedules.checks.deadlocks import given, taken
from remesh.parallel.plan.schedules.operations import Reduce, Step, Transfer, Vote
from remesh.parallel.plan.schedules.replica_slots import Slot, slots_alone
from remesh.parallel.plan.schedules.timing.standings import (
    ending,
    num_last,
    standings,
    wired_standings,
)
from remesh.parallel.step.rank_schedule import ReplicaShape, own_list

MOST = 10**6
MOST_LINES = 250  # of Python for each pass of all ranks
EMPTY = Slot(microbatch=None, leaf=None, ends_leaf=True)
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
    last = num_last(replicas[0][0])
    end = numbers[0][0][-last]  # that of the fullest
    ended = [ending(own[:-last], end, last) for one in numbers for own in one]
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


def shapes():
    """Of each case, and where the last slots are empty; and what a rank has of it."""
    for name, ranks, number in CASES:
        for filled in range(1, number + 1):
            slots = (*slots_alone(number)[:filled], *[EMPTY] * (number - filled))
            pipeline = pipeline_of(name, ranks, 2)
            shape = ReplicaShape(
                name=name,
                pipeline=pipeline,
                num_slots=number,
                num_filled=filled,
                shares_experts=False,
            )
            yield shape, schedules_of(name, pipeline, slots), slots


def test_a_rank_that_makes_its_own_list_alone_has_the_one_of_all_ranks_and_stands_as_in_it():
    for shape, schedules, slots in shapes():
        for position, numbers in enumerate(standings(schedules)):
            own = own_list(shape, position)
            operations = schedule_of(own.places, slots)
            assert operations == schedules[position], shape
            assert ending(own.numbers, own.end, num_last(operations)) == numbers, shape


def test_lists_that_wait_for_each_other_are_refused():
    pipeline = pipeline_of("1f1b", 2)
    first, second = catalogue.lists_of("1f1b", pipeline, 2)
    with pytest.raises(ScheduleError, match="wait for each other"):
        wired_standings((first, second[::-1]), 2, 0)


def test_the_cost_is_linear_in_microbatches_and_nothing_the_second_time():
    """Long pipelines of many microbatches have a million entries, and meshes are formed often."""

    def lines(num_slots):
        pipeline = pipeline_of("interleaved", 4, 2)
        shape = ReplicaShape(
            name="interleaved",
            pipeline=pipeline,
            num_slots=num_slots,
            num_filled=num_slots,
            shares_experts=False,
        )
        own_list.cache_clear()
        return lines_run(own_list, shape, 3), lines_run(own_list, shape, 3)

    (few, again), (many, _) = lines(16), lines(64)
    passes = 2 * 4 * 2 * 16
    assert again < 10
    assert few < MOST_LINES * passes
    assert many < 4.2 * few
