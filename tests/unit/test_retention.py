import math
import random

import pytest

from remesh.parallel.state.retention import (
    MAX_BACK_STEPS,
    MIN_BACK_STEPS,
    Retention,
    retained,
)
from remesh.parallel.state.root_manifest import CheckpointRef


def refs(*steps, generation=1):
    return [CheckpointRef(step=step, generation=generation) for step in steps]


def kept(steps, metrics=None, **policy):
    policy = Retention(**{"way_back": False, **policy})
    rated = {CheckpointRef(step=s, generation=1): {"loss": v} for s, v in (metrics or {}).items()}
    return sorted(ref.step for ref in retained(refs(*steps), policy, rated))


def test_the_last_ones_stay_and_the_newest_whatever_is_asked():
    assert kept([10, 30, 20, 40], last=2) == [30, 40]
    assert kept([10, 20], last=0) == [20]
    assert kept([10, 20], last=9) == [10, 20]
    assert kept([]) == []


def test_every_nth_stays_for_good():
    assert kept(range(0, 101, 10), every=40) == [0, 40, 80, 100]


def test_the_best_stay_in_either_direction_and_the_newer_of_equals():
    losses = {10: 3.0, 20: 1.0, 30: 2.0, 40: 1.0, 50: 9.0}
    assert kept(losses, losses, best=1) == [40, 50]
    assert kept(losses, losses, best=2) == [20, 40, 50]
    assert kept(losses, losses, best=2, higher_is_better=True) == [10, 50]
    assert kept(losses, losses, best=1, metric="accuracy") == [50]


def test_one_without_the_metric_is_never_the_best():
    assert kept([10, 20, 30], {20: 5.0}, best=2) == [20, 30]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_one_whose_metric_is_not_finite_is_never_the_best(loss):
    """inputs A1, parallel A4: it was told as 0.0, and the real best was deleted."""
    assert kept([10, 20, 30], {10: 2.4, 20: loss}, best=1) == [10, 30]
    assert kept([10, 20, 30], {10: 2.4, 20: loss}, best=1, higher_is_better=True) == [10, 30]


def test_of_one_step_the_later_generation_is_newer():
    both = refs(20, generation=2) + refs(20, generation=3)
    assert retained(both, Retention(way_back=False)) == set(refs(20, generation=3))


def test_what_is_asked_for_adds_up():
    losses = dict.fromkeys(range(10, 301, 10), 2.0) | {70: 1.0}
    steps = kept(losses, losses, last=2, every=100, best=1, way_back=True)
    assert {290, 300, 100, 200, 70, 150} <= set(steps)
    assert len(steps) < 10


@pytest.mark.parametrize("seed", range(30))
def test_a_way_back_is_there_whenever_one_was_ever_saved(seed):
    """Whatever the steps between checkpoints, pruned after each of them."""
    draw = random.Random(seed)
    longest = draw.choice([1, 5, 30, 60, 100, 149, 150, 151, 400])
    saved, left, step = [], set(), 0
    for _ in range(100):
        step += draw.randint(1, longest)
        saved += refs(step)
        left = retained(left | set(saved[-1:]), Retention())
        assert saved[-1] in left
        assert any_in_window(saved, step) == any_in_window(left, step)
        assert len(left) <= 5


def any_in_window(some, newest):
    return any(MIN_BACK_STEPS <= newest - ref.step <= MAX_BACK_STEPS for ref in some)
