"""No schedule, number of pipeline ranks or cut of layers changes a bit, alone or with dp and tp."""

import pytest
from piped import TIED, Piped, assert_same, run

from remesh.parallel.plan.layout import Layout


def schedules(**more):
    return {
        "gpipe": Piped(schedule="gpipe", **more),
        "1f1b": Piped(**more),
        "zb-h1": Piped(schedule="zb-h1", **more),
        "interleaved": Piped(schedule="interleaved", chunks=2, **more),
        "dualpipe-v": Piped(schedule="dualpipe-v", chunks=2, folded=True, **more),
    }


@pytest.mark.parametrize("more", [{}, {"model": TIED}])
@pytest.mark.parametrize("pp", [2, 4])
def test_x(pool, pp, more):
    expected = run(pool, Layout(), {"alone": Piped(more=more)})["alone"]
    assert_same(run(pool, Layout(pp=pp), schedules(more=more)), expected)
