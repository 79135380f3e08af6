"""Every schedule of a pipeline against one fp64 process that sees the whole batch at once.

So many microbatches as a replica has: from fewer than ranks to what each schedule is published for.
"""

from dataclasses import replace

import pytest
import torch
from one_process import FP64, Z_LOSS, assert_as_expected, expected_of, trained
from piped import SCHEDULES, Piped, formed, legal
from small_engine import zero

from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.schedules.catalogue import pipeline_of

MICROBATCHES = (1, 2, 3, 4, 8)
SOME_OF_THEM = (2, 4, 8)  # where replicas or ranks of a stage share the work, too
SIZES = {
    "width": 16,
    "num_heads": 2,
    "num_kv_heads": 1,
    "ffn_width": 24,
    "vocab_size": 61,
    "seq_len": 20,
}
WITH = {
    "alone": (Layout(), {}),
    "tp2": (Layout(tp=2), {}),
    "zero1": (Layout(dp=2), {"zero": zero(1)}),
    "zero3": (Layout(dp=2), {"zero": zero(3)}),
    "hybrid": (Layout(dp=4), {"zero": zero(3, group=2)}),
}


def cases_of(ranks, more, microbatches=SOME_OF_THEM):
    """By schedule and number of microbatches of a replica; each stage has a layer."""
    settings = {"z_loss": Z_LOSS, "precision": FP64, **more}
    return {
        (name, number): Piped(schedule=name, more={"model": model_of(name, ranks), **settings})
        for number in microbatches
        for name in SCHEDULES
        if legal(name, ranks, (number,))
    }


def model_of(schedule, ranks):
    num_stages = pipeline_of(schedule, ranks, 2).num_stages
    return ModelConfig(num_layers=num_stages, **SIZES)


def train(seat, layout, cases, dealt=None):
    """The outcome of each case.

    `dealt` are leaves, microbatches in each and sequences in each of them, of one if not given.
    """
    torch.set_num_threads(1)
    mesh, outcomes = None, []
    for (_, number), case in cases.items():
        wanted = case.spec(dealt or (number * layout.dp, 1, 1))
        mesh = mesh or seat.mesh(layout, wanted.zero.shard_size(layout.dp))
        engine = formed(mesh, case, wanted)
        engine.reset()
        outcomes.append(trained(engine))
    mesh.close()
    return outcomes


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", WITH)
def test_losses_gradients_norms_and_parameters_are_those_of_one_process(pool, name, ranks):
    around, more = WITH[name]
    cases = cases_of(ranks, more, MICROBATCHES if name == "alone" else SOME_OF_THEM)
    assert_those_of_one_process(pool, replace(around, pp=ranks), cases)


def test_so_are_those_of_replicas_of_tensor_ranks(pool):
    assert_those_of_one_process(pool, Layout(dp=2, pp=2, tp=2), cases_of(2, {"sequence": True}))


def assert_those_of_one_process(pool, layout, cases):
    outcomes = pool.run(train, layout.world_size, layout, cases)
    seen = {}
    for (schedule, number), found in zip(cases, zip(*outcomes, strict=True), strict=True):
        model = model_of(schedule, layout.pp)
        assert_as_expected(found, expected_of(model, number * layout.dp))
        results = seen.setdefault((model, number), found[0][0])
        assert found[0][0] == results  # bit for bit


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_so_are_those_that_are_added_up_in_any_order(pool, stage):
    """Five leaves of two microbatches each: six, or four and an empty visit or two."""
    layout, more = Layout(dp=2, pp=2), {"zero": zero(stage), "same_bits": False}
    cases = {
        key: replace(case, leaves=(3, 2))
        for key, case in cases_of(2, more).items()
        if key in {("interleaved", 4), ("dualpipe-v", 4)}
    }
    outcomes = pool.run(train, layout.world_size, layout, cases, (5, 2, 1))
    for (schedule, _), found in zip(cases, zip(*outcomes, strict=True), strict=True):
        assert_as_expected(found, expected_of(model_of(schedule, 2), 10))
