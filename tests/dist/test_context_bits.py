"""Where rows are shared out, no number of replicas, stage of ZeRO or pipeline changes a bit."""

from dataclasses import replace

import pytest
from piped import MODEL, TIED, Piped, assert_same, run
from small_engine import zero

from remesh.parallel.plan.layout import Layout

SHALLOW = {"model": replace(MODEL, num_layers=4)}
TIED_ROWS = {"model": replace(TIED, num_layers=4, seq_len=16)}
AROUND = {
    "dp2": (Layout(dp=2, cp=2), [{}, {"zero": zero(1)}, {"zero": zero(2)}, {"zero": zero(3)}]),
    "dp3": (Layout(dp=3, cp=2), [{}, {"zero": zero(3)}]),
    "dp4": (Layout(dp=4, cp=2), [{"zero": zero(3, group=2)}]),
    "pp2": (Layout(pp=2, cp=2), [{}]),
}
OF_FOUR = {
    "alone": (Layout(cp=4), [{"zero": zero(2)}]),
    "dp2": (Layout(dp=2, cp=4), [{}, {"zero": zero(1)}, {"zero": zero(3)}]),
}


def cases(settings, schedules=("1f1b",), **more):
    return {
        (schedule, number): Piped(schedule=schedule, more={**one, **more})
        for number, one in enumerate(settings)
        for schedule in schedules
    }


def alone(pool, cp, dealt, **more):
    return run(pool, Layout(cp=cp), {"alone": Piped(more=more)}, dealt)["alone"]


@pytest.mark.parametrize("dealt", [(4, 2, 2), (7, 1, 2)])
def test_two_ranks_of_a_row_train_to_the_same_bits_in_every_mesh(pool, dealt):
    expected = alone(pool, 2, dealt, **SHALLOW)
    for layout, settings in AROUND.values():
        schedules = ("1f1b", "zb-h1") if layout.pp > 1 else ("1f1b",)
        found = run(pool, layout, cases(settings, schedules, **SHALLOW), dealt)
        assert_same(found, expected)


def test_four_ranks_of_a_row_train_to_the_same_bits_in_every_mesh(pool):
    expected = alone(pool, 4, (4, 2, 2), **TIED_ROWS)
    for layout, settings in OF_FOUR.values():
        assert_same(run(pool, layout, cases(settings, **TIED_ROWS)), expected)
