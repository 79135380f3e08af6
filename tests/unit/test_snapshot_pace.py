"""Every how many steps a snapshot is due: what it costs, and what a loss costs."""

from itertools import pairwise
from random import Random

import pytest

from remesh.orchestrator.vault.snapshot_pace import MOST_S, Pace


def drive(pace, *, steps, copy_s, busy_s):
    """Steps of 0.1 s, longer by `busy_s` beside a snapshot; the steps of which one was taken."""
    now_s, busy, taken = 0.0, False, []
    pace.begin(0)
    for step in range(1, steps + 1):
        now_s += 0.1 + (busy_s if busy else 0.0)
        busy = False
        pace.mark(now_s, busy=busy)
        if pace.is_due(step):
            pace.note(step, copy_s)
            now_s += copy_s
            taken.append(step)
            busy = True
    return taken


def test_the_interval_follows_from_what_copies_cost():
    taken = drive(Pace("auto"), steps=200, copy_s=0.0105, busy_s=0.0)
    assert taken[0] == 1
    assert [after - before for before, after in pairwise(taken)][-4:] == [11] * 4


def test_the_interval_follows_from_how_much_longer_steps_are_beside_them():
    taken = drive(Pace("auto"), steps=200, copy_s=0.0001, busy_s=0.0105)
    assert [after - before for before, after in pairwise(taken)][-4:] == [11] * 4


def test_what_costs_nothing_is_taken_of_every_step():
    taken = drive(Pace("auto"), steps=60, copy_s=0.0005, busy_s=0.0)
    assert taken[-20:] == list(range(41, 61))


def test_a_number_of_steps_is_kept_to():
    pace = Pace(5)
    assert [step for step in range(1, 16) if pace.is_due(step)] == [5, 10, 15]
    assert not any(Pace(0).is_due(step) for step in range(10))


def generations(pace, *, seed, step_s, kill_every_s, number=40):
    """What each of some generations lost to a kill, in steps, and its first snapshot.

    Steps are longer or shorter by up to a half, by chance; a snapshot is safe two steps later.
    """
    chance = Random(seed)
    step, now_s, told = 0, 0.0, []
    for _ in range(number):
        start, until_s, safe, taken = step, now_s + kill_every_s, step, []
        pace.begin(step)
        while now_s < until_s:
            step += 1
            now_s += step_s * chance.uniform(0.5, 1.5)
            pace.mark(now_s, busy=bool(taken) and taken[-1] >= step - 1)
            if pace.is_due(step):
                copy_s = step_s * chance.uniform(0.0, 0.02)
                pace.note(step, copy_s)
                now_s += copy_s
                taken.append(step)
            safe = max([safe, *(one for one in taken if one <= step - 2)])
        told.append((step - safe, taken[0] - start))
        step = safe
    return told


@pytest.mark.parametrize("step_s", [0.02, 0.2, 0.35, 1.5])
def test_a_world_that_fails_every_few_seconds_loses_little_each_time(step_s):
    """speed 3: by chance a snapshot seemed so dear that a run fell back to the same step for ever.

    Two steps until the newest snapshot is safe, and the interval.
    """
    for seed in range(10):
        found = generations(Pace("auto"), seed=seed, step_s=step_s, kill_every_s=5.0)
        most = 2 + max(2, int(MOST_S / (step_s * 0.75)))
        assert max(lost for lost, _ in found) <= most
        assert {first for _, first in found} == {1}


def test_a_generation_begins_with_a_snapshot_however_dear_they_are():
    """speed 3: without it the next fault would go back behind this generation."""
    pace = Pace("auto")
    assert drive(pace, steps=100, copy_s=0.03, busy_s=0.0)[-1] > 60
    pace.begin(100)
    assert [pace.is_due(101), pace.is_due(102)] == [True, True]
    pace.note(102, 0.03)
    assert not pace.is_due(103)


def test_the_interval_is_bounded_in_seconds_unless_that_costs_a_tenth_of_the_time():
    """speed 3: steps of 0.1 s and copies of a fifth, of one and of two steps."""
    for copy_s, interval in ((0.02, 20), (0.1, 20), (0.3, 31)):
        pace = Pace("auto")
        drive(pace, steps=200, copy_s=copy_s, busy_s=0.0)
        assert pace.interval in (interval - 1, interval)


@pytest.mark.parametrize("step_s", [0.2, 1.5])
def test_steps_that_differ_by_chance_do_not_make_snapshots_dear(step_s):
    """speed 3: the interval is of what a snapshot costs, and not of the noise of step times."""
    for seed in range(20):
        pace, chance, now_s = Pace("auto"), Random(seed), 0.0
        for step in range(1, 200):
            pace.mark(now_s, busy=step % 2 == 0)
            now_s += step_s * chance.uniform(0.7, 1.3)
            if pace.is_due(step):
                pace.note(step, step_s * 0.001)
        assert pace.interval <= 2
