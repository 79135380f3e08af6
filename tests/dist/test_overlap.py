"""A forward beside a backward: while one waits for what experts are sent the other one computes."""

import ctypes
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from piped import Piped, assert_same, formed, run
from small_engine import work_of, zero
from test_experts import EXPERTS, MORE
from waiting import soon

from remesh.parallel.groups.group import PendingOperation
from remesh.parallel.model.recompute import Recompute
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.schedules.operations import Forward, Overlap
from remesh.parallel.techniques.taking_turns import TakingTurns

LAYOUT = Layout(dp=2, pp=2, ep=2)
DEALT = (8, 1, 2)


def ways():
    """Whole layers, and shares of them that are gathered for each two that are side by side."""
    more = {
        "plain": {},
        "zero1": {"zero": zero(1)},
        "zero3": {"zero": zero(3)},
        "again": {"recompute": Recompute(mode="full", every=2)},
    }
    return {name: Piped(schedule="dualpipe-v", more={**MORE, **own}) for name, own in more.items()}


def test_pairs_have_the_bits_of_one_pass_after_the_other(pool):
    expected = run(pool, Layout(dp=2, ep=2), {"alone": Piped(more=MORE)}, DEALT)["alone"]
    assert_same(run(pool, LAYOUT, ways(), DEALT), expected)


def test_replicas_of_which_some_have_fewer_leaves_keep_company_in_pairs(pool):
    expected = run(pool, Layout(dp=2, ep=2), {"alone": Piped(more=MORE)}, (20, 1, 1))["alone"]
    leaves = (6, 6, 4, 4)
    cases = {name: replace(case, leaves=leaves) for name, case in ways().items() if name != "again"}
    assert_same(run(pool, replace(LAYOUT, dp=4), cases, (20, 1, 1)), expected)


def words_of_a_step(seat, case):
    """What the engine tells of a step, in order, and its pairs."""
    torch.set_num_threads(1)
    mesh = seat.mesh(LAYOUT)
    engine = formed(mesh, case, case.spec(DEALT))
    engine.reset()
    words, reached = [], []
    engine.step(1, work_of(mesh, 1, trace=words.append, reach=reached.append))
    mesh.close()
    return words, [one for one in reached if isinstance(one, Overlap)]


def messages(words):
    """Of each message that is started: of what pass, and the words until it is waited for."""
    for start, word in enumerate(words):
        if word.what == "starts":
            ends = (n for n, one in enumerate(words) if one.what == "waits" and one.of == word.of)
            yield word.of, words[start : next(n for n in ends if n > start)]


def computing(words):
    return {word.of for word in words if word.what == "computes"}


def test_between_start_and_wait_of_each_message_of_a_pair_another_microbatch_computes(pool):
    """Two of each layer forward, and two backward, of two layers a stage."""
    everywhere = replace(EXPERTS, num_layers=8, num_dense_layers=0)
    case = Piped(schedule="dualpipe-v", more={**MORE, "model": everywhere})
    for words, pairs in pool.run(words_of_a_step, 4, case):
        assert len(pairs) >= 3
        beside = {pair.forward: pair.backward for pair in pairs}
        beside |= {pair.backward: pair.forward for pair in pairs}
        found = [(own, between) for own, between in messages(words) if own in beside]
        assert len(found) == 8 * len(pairs)
        for own, between in found:
            assert computing(between) == {beside[own]}
            assert own.microbatch != beside[own].microbatch
        alone = [between for own, between in messages(words) if own not in beside]
        assert alone
        assert not any(map(computing, alone))


class BrokenPassError(Exception):
    """Of one pass."""


def broken(turns, where):
    """What comes of it if one of two passes fails, before or after it has waited for a message."""
    done = []

    def one_pass(name):
        def part():
            if where == (name, "before"):
                raise BrokenPassError(name)
            turns.wait_for(PendingOperation())
            if where == (name, "after"):
                raise BrokenPassError(name)
            done.append(name)

        return part

    with (
        pytest.raises(BrokenPassError, match=where[0]),
        turns.of_two(Forward(microbatch=0), Forward(microbatch=1)) as run_both,
    ):
        run_both(one_pass("own"), one_pass("guest"))
    return done


@pytest.mark.parametrize("name", ["own", "guest"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_pass_that_fails_ends_the_other_one_where_it_stands(name, moment):
    turns, before = TakingTurns(), threading.active_count()
    done = broken(turns, (name, moment))
    assert soon(lambda: threading.active_count() <= before)
    assert done == (["guest"] if (name, moment) == ("own", "after") else [])
    turns.wait_for(PendingOperation())  # by itself again


def test_passes_take_turns_at_their_messages_and_at_no_other_place():
    turns, words = TakingTurns(), []
    turns.trace = words.append

    def waits(times):
        def part():
            for _ in range(times):
                turns.wait_for(PendingOperation())

        return part

    with turns.of_two(Forward(microbatch=0), Forward(microbatch=1)) as run_both:
        run_both(waits(2), waits(1))
        run_both(None, waits(1))
    said = [f"{word.of.microbatch} {word.what}" for word in words]
    assert said == [
        *("1 computes", "1 starts", "0 computes", "0 starts"),
        *("1 waits", "1 computes", "0 waits", "0 computes", "0 starts", "0 waits", "0 computes"),
        *("1 computes", "1 starts", "1 waits", "1 computes"),
    ]


def test_a_guest_computes_by_as_many_threads_as_its_host():
    """As kernels see it, of which many ask OpenMP and not torch."""
    [library] = (Path(torch.__file__).parent / "lib").glob("libgomp*")
    openmp, before, found = ctypes.CDLL(str(library)), torch.get_num_threads(), []
    torch.set_num_threads(3)
    with TakingTurns().of_two(Forward(microbatch=0), Forward(microbatch=1)) as run_both:
        run_both(None, lambda: found.append(openmp.omp_get_max_threads()))
    torch.set_num_threads(before)
    assert found == [3]
