"""Rows whose tokens lie on several ranks, beside all other ways of sharing a step out.

Against one fp64 process that sees the whole batch at once.
"""

from dataclasses import dataclass, field

import pytest
import torch
from one_process import FP64, Z_LOSS, assert_as_expected, expected_of, trained
from small_engine import spec, zero

from remesh.parallel.model.recompute import Recompute
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.schedules.catalogue import pipeline_of
from remesh.parallel.step.engine import Engine

SIZES = {
    "num_layers": 4,
    "width": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_width": 48,
    "vocab_size": 61,
    "seq_len": 16,
}
OTHER_MODEL = {
    "norm": "layer",
    "positions": "learned",
    "activation": "gelu",
    "bias": True,
    "qk_norm": True,
    "tied": True,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """`more` is what the engine's spec has, `lengths` the leaves of each replica."""

    layout: Layout
    model: dict = field(default_factory=dict)
    more: dict = field(default_factory=dict)
    schedule: str = "1f1b"
    num_leaves: int = 4
    microbatches_per_leaf: int = 1

    @property
    def spec(self):
        model = ModelConfig(**(SIZES | self.model))
        settings = {"model": model, "z_loss": Z_LOSS, "precision": FP64, **self.more}
        return spec(self.num_leaves, self.microbatches_per_leaf, **settings)


def recompute(mode):
    return {"recompute": Recompute(mode=mode)}


CASES = {
    "cp2": Case(layout=Layout(cp=2), microbatches_per_leaf=2),
    "cp4": Case(layout=Layout(cp=4)),
    "cp2 other model": Case(layout=Layout(cp=2), model=OTHER_MODEL),
    "cp2 plain": Case(layout=Layout(dp=2, cp=2), more={"same_bits": False}),
    "cp2 plain zero2": Case(layout=Layout(dp=2, cp=2), more={"same_bits": False, "zero": zero(2)}),
    "cp4 zero1": Case(layout=Layout(cp=4), more={"zero": zero(1)}),
    "cp2 zero2": Case(layout=Layout(cp=2, dp=2), more={"zero": zero(2)}),
    "uneven": Case(layout=Layout(dp=3, cp=2), num_leaves=7, microbatches_per_leaf=2),
    "uneven zero3": Case(layout=Layout(dp=3, cp=2), num_leaves=7, more={"zero": zero(3)}),
    "hybrid": Case(layout=Layout(dp=4, cp=2), more={"zero": zero(3, group=2)}),
    "dp2 cp2 tp2": Case(layout=Layout(dp=2, cp=2, tp=2)),
    "dp2 cp2 tp2 sequence": Case(
        layout=Layout(dp=2, cp=2, tp=2), more={"sequence": True}, model=OTHER_MODEL
    ),
    "zero3 dp2 cp2 tp2": Case(layout=Layout(dp=2, cp=2, tp=2), more={"zero": zero(3)}),
    **{
        f"{name} pp2 cp2 tp2": Case(layout=Layout(pp=2, cp=2, tp=2), schedule=name)
        for name in ("1f1b", "interleaved", "zb-h1", "dualpipe-v")
    },
    "other model pp2 cp2 tp2 sequence": Case(
        layout=Layout(pp=2, cp=2, tp=2),
        model=OTHER_MODEL,
        schedule="zb-h1",
        more={"sequence": True, **recompute("full")},
    ),
    "zero2 pp2 cp2 dp2": Case(layout=Layout(pp=2, cp=2, dp=2), more={"zero": zero(2)}),
    **{
        f"recompute {mode}": Case(layout=Layout(cp=2), more=recompute(mode))
        for mode in ("attention", "full")
    },
}


def train(seat, name):
    torch.set_num_threads(1)
    case = CASES[name]
    layout, wanted = case.layout, case.spec
    mesh = seat.mesh(layout, wanted.zero.shard_size(layout.dp, layout.cp))
    engine = Engine(wanted)
    engine.form(mesh, (), case.schedule, pipeline_of(case.schedule, layout.pp, 2))
    engine.reset()
    outcome = trained(engine)
    mesh.close()
    return outcome


@pytest.mark.parametrize("name", CASES)
def test_losses_gradients_norms_and_parameters_are_those_of_one_process(pool, name):
    case = CASES[name]
    outcomes = pool.run(train, case.layout.world_size, name)
    batch_size = 2 * case.num_leaves * case.microbatches_per_leaf
    assert_as_expected(outcomes, expected_of(case.spec.model, batch_size))
    assert {(result.tokens, result.samples) for result in outcomes[0][0]} == {
        (16 * batch_size, batch_size)
    }
