"""No schedule, number of pipeline ranks or cut of layers changes a bit, alone or with dp and tp.

Eight microbatches in four leaves; three replicas have four microbatches, two and two.
"""

from dataclasses import replace

import pytest
import torch
from piped import SCHEDULES, TIED, Piped, assert_same, legal, run
from small_engine import zero

from remesh.parallel.model.recompute import Recompute
from remesh.parallel.plan.layout import Layout
from remesh.parallel.spec import Precision

NUM_MICROBATCHES = 8


@pytest.fixture(scope="module")
def alone(sessions_pool):
    """Outcomes of a single replica without a pipeline, by what belongs to the bit key."""
    known = {}

    def outcome(tp=1, dealt=(4, 2, 2), **key):
        name = f"{tp} {dealt} {key}"
        if name not in known:
            cases = {"alone": Piped(more=key)}
            known[name] = run(sessions_pool, Layout(tp=tp), cases, dealt)["alone"]
        return known[name]

    return outcome


def small(stage, **more):
    """A bucket a block, or hardly more."""
    return {"zero": zero(stage, **{"bucket_bytes": 1 << 14, **more})}


def each_schedule(layout, more, *, slots=(4, 2, 2)):
    """Those that are legal for so many slots of each of three replicas, or for equal ones."""
    share = NUM_MICROBATCHES // layout.dp
    numbers = slots if layout.dp == 3 else (share,)
    return {
        f"{name} {more.get('zero', '')}": Piped(schedule=name, more=more)
        for name in SCHEDULES
        if legal(name, layout.pp, numbers)
    }


KINDS = {
    "plain": {},
    "tied": {"model": TIED},
    "full": {"recompute": Recompute(mode="full", every=2)},
    "attention": {"model": replace(TIED, tied=False), "recompute": Recompute(mode="attention")},
    "bf16": {"precision": Precision(compute=torch.bfloat16), "model": TIED},
}


@pytest.mark.parametrize(
    ("kind", "pp"), [("plain", 2), ("plain", 3), *((kind, 4) for kind in KINDS)]
)
def test_schedules_and_ranks_change_no_bit(pool, alone, kind, pp):
    cases = each_schedule(Layout(pp=pp), KINDS[kind])
    assert_same(run(pool, Layout(pp=pp), cases), alone(**KINDS[kind]))


SPLITS = {
    2: {"1f1b": (1, 7), "zb-h1": (6, 2), "interleaved": (3, 1, 1, 3), "dualpipe-v": (1, 2, 3, 2)},
    3: {"gpipe": (1, 6, 1), "1f1b": (3, 3, 2)},
    4: {"1f1b": (3, 2, 2, 1), "interleaved": (1,) * 8, "zb-h1": (1, 1, 5, 1)},
}


@pytest.mark.parametrize("pp", SPLITS)
def test_nor_do_own_splits_of_the_layers(pool, alone, pp):
    cases = {
        name: Piped(schedule=name, layers=layers, more={"model": TIED})
        for name, layers in SPLITS[pp].items()
    }
    assert_same(run(pool, Layout(pp=pp), cases), alone(model=TIED))


@pytest.mark.parametrize("num_microbatches", [1, 2, 3])
def test_nor_do_they_with_fewer_microbatches_than_ranks(pool, alone, num_microbatches):
    dealt = (num_microbatches, 1, 2)
    names = [name for name in SCHEDULES if legal(name, 4, (num_microbatches,))]
    assert names == ["gpipe", "1f1b", "zb-h1"]
    cases = {name: Piped(schedule=name) for name in names}
    assert_same(run(pool, Layout(pp=4), cases, dealt), alone(dealt=dealt))


@pytest.mark.parametrize(
    ("layout", "model", "zeros"),
    [
        (Layout(dp=2, pp=2), {"model": TIED}, [small(0), small(2), small(3, keep_gathered=True)]),
        (Layout(dp=3, pp=2), {}, [small(1), small(3)]),
    ],
)
def test_nor_do_they_with_replicas_and_zero(pool, alone, layout, model, zeros):
    cases = {}
    for shared in zeros:
        streams = shared["zero"].stage > 1
        slots = (4, 4, 4) if streams else (4, 2, 2)
        cases |= each_schedule(layout, shared | model, slots=slots)
    assert_same(run(pool, layout, cases), alone(**model))


def test_nor_do_they_with_hybrid_sharding(pool, alone):
    layout, cases = Layout(dp=4, pp=2), {}
    for stage in (1, 2):
        cases |= each_schedule(layout, small(stage, group=2) | {"model": TIED})
    assert_same(run(pool, layout, cases), alone(model=TIED))


@pytest.mark.parametrize("leaves", [(3, 1), (4, 0), (0, 4)])
def test_nor_do_they_where_replicas_have_different_numbers_of_leaves_or_none(pool, alone, leaves):
    cases = {
        f"{name} {stage}": Piped(schedule=name, leaves=leaves, more=small(stage))
        for name in ("interleaved", "zb-h1")
        for stage in (1, 3)
    }
    assert_same(run(pool, Layout(dp=2, pp=2), cases), alone())


TENSOR = {
    "tensor": {},
    "tied sequence": {"sequence": True, "model": TIED},
}


@pytest.mark.parametrize("name", TENSOR)
def test_nor_do_they_with_a_tensor_group(pool, alone, name):
    layout, more = Layout(pp=2, tp=2), TENSOR[name]
    assert_same(run(pool, layout, each_schedule(layout, more)), alone(tp=2, **more))


def test_nor_do_they_with_all_at_once(pool, alone):
    layout, more = Layout(dp=2, pp=2, tp=2), TENSOR["tied sequence"]
    cases = each_schedule(layout, more | small(3))
    assert_same(run(pool, layout, cases), alone(tp=2, **more))
