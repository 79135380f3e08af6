import threading

import pytest

from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.plan.errors import Cancelled


def test_a_raised_fence_ends_this_generation_and_all_before_it():
    fence = GenerationFence()
    fence.check(0)
    fence.up(3)
    for generation in (0, 3):
        assert fence.is_up(generation)
        with pytest.raises(Cancelled, match=f"generation {generation} is over"):
            fence.check(generation)
    fence.check(4)


def test_an_older_fence_that_comes_late_changes_nothing():
    fence = GenerationFence()
    fence.up(5)
    fence.up(2)
    assert fence.generation == 5
    fence.check(6)


def test_raising_frees_those_who_wait_in_the_generation_and_nobody_else():
    fence = GenerationFence()
    freed = []
    fence.guard(1, lambda: freed.append(1))
    fence.guard(2, lambda: freed.append(2))
    released = fence.guard(1, lambda: freed.append("released"))
    fence.release(released)
    fence.release(released)
    fence.up(1)
    assert freed == [1]
    fence.up(2)
    assert freed == [1, 1, 2]


def test_guarding_a_generation_that_is_over_is_refused():
    fence = GenerationFence()
    fence.up(1)
    with pytest.raises(Cancelled):
        fence.guard(1, lambda: None)


def test_a_way_out_may_use_the_fence_itself():
    fence = GenerationFence()
    key = fence.guard(1, lambda: fence.release(key))
    fence.up(1)


def test_whoever_waits_is_freed_in_whichever_order_guard_and_up_come():
    for _ in range(200):
        fence, freed = GenerationFence(), threading.Event()
        raiser = threading.Thread(target=fence.up, args=[1])
        raiser.start()
        try:
            fence.guard(1, freed.set)
        except Cancelled:
            freed.set()
        raiser.join()
        assert freed.is_set()
