"""A model with experts, shared out in every way, against one fp64 process.

Of eight experts one gets every token, and one none.
"""

from dataclasses import dataclass, field, replace

import pytest
import torch
from one_process import FP64, Z_LOSS, assert_as_expected, expected_of, skew, trained
from small_engine import spec, zero

from remesh.parallel.model.recompute import Recompute
from remesh.parallel.model.router import RouterRates
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.schedules.catalogue import pipeline_of
from remesh.parallel.spec import ZeroSpec
from remesh.parallel.step.engine import Engine

MODEL = ModelConfig(
    num_layers=3,
    width=32,
    num_heads=4,
    num_kv_heads=2,
    ffn_width=48,
    vocab_size=61,
    seq_len=20,
    num_experts=8,
    expert_width=24,
    num_shared_experts=1,
    num_dense_layers=1,
    balanced=True,
)
ROUTER = RouterRates(auxiliary=0.05, z_loss=0.01, balance=0.03)
FULL = {"capacity_factor": 0.75}


@dataclass(frozen=True, kw_only=True)
class Case:
    layout: Layout
    kind: dict = field(default_factory=dict)
    zero: ZeroSpec = field(default_factory=ZeroSpec)
    recompute: Recompute = field(default_factory=Recompute)
    sequence: bool = False
    schedule: str = "1f1b"
    same_bits: bool = True
    num_leaves: int = 8

    @property
    def model(self):
        return replace(MODEL, **self.kind)

    @property
    def spec(self):
        return spec(
            self.num_leaves,
            1,
            model=self.model,
            router=ROUTER,
            z_loss=Z_LOSS,
            precision=FP64,
            zero=self.zero,
            recompute=self.recompute,
            sequence=self.sequence,
            same_bits=self.same_bits,
        )


CASES = {
    "dp3 zero2": Case(layout=Layout(dp=3), zero=zero(2)),
    "dp4 hybrid": Case(layout=Layout(dp=4), zero=zero(3, group=2)),
    "tp2": Case(layout=Layout(tp=2), num_leaves=2),
    "tp4 sp": Case(layout=Layout(tp=4), sequence=True, num_leaves=2),
    "pp2 dp2": Case(layout=Layout(pp=2, dp=2)),
    "pp2 tp2 sp zb-h1": Case(layout=Layout(pp=2, tp=2), sequence=True, schedule="zb-h1"),
    "ep2": Case(layout=Layout(dp=2, ep=2)),
    "ep4": Case(layout=Layout(dp=4, ep=4)),
    "dp4 ep2 zero1": Case(layout=Layout(dp=4, ep=2), zero=zero(1)),
    "dp4 ep2 zero3": Case(layout=Layout(dp=4, ep=2), zero=zero(3)),
    "dp8 ep2 hybrid": Case(layout=Layout(dp=8, ep=2), zero=zero(3, group=2)),
    "dp4 tp2 ep4": Case(layout=Layout(dp=4, tp=2, ep=4)),
    "pp2 dp4 ep2": Case(layout=Layout(pp=2, dp=4, ep=2)),
    "pp2 dp2 ep2 zb-h1": Case(layout=Layout(pp=2, dp=2, ep=2), schedule="zb-h1"),
    "side by side": Case(
        layout=Layout(pp=2, dp=2, ep=2), schedule="dualpipe-v", kind={"num_layers": 5}
    ),
    "side by side zero2 any bits": Case(
        layout=Layout(pp=2, dp=2, ep=2),
        schedule="dualpipe-v",
        kind={"num_layers": 5},
        zero=zero(2),
        same_bits=False,
    ),
    "side by side cp2 ep2": Case(
        layout=Layout(pp=2, cp=2, dp=2, ep=2), schedule="dualpipe-v", kind={"num_layers": 5}
    ),
    "side by side tp2 sp zero3": Case(
        layout=Layout(pp=2, dp=2, tp=2, ep=2),
        schedule="dualpipe-v",
        kind={"num_layers": 5},
        sequence=True,
        zero=zero(3),
    ),
    "cp2": Case(layout=Layout(cp=2)),
    "cp2 ep2": Case(layout=Layout(cp=2, ep=2)),
    "pp2 cp2 dp2 ep2": Case(layout=Layout(pp=2, cp=2, dp=2, ep=2)),
    "full experts cp2 dp2 ep2": Case(layout=Layout(cp=2, dp=2, ep=2), kind=FULL),
    "full experts cp4": Case(layout=Layout(cp=4), kind={**FULL, "seq_len": 16}),
    "dp2 cp2 ep4": Case(layout=Layout(dp=2, cp=2, ep=4)),
    "dp2 tp2 ep2 sp zero2 recompute": Case(
        layout=Layout(dp=2, tp=2, ep=2),
        sequence=True,
        zero=zero(2),
        recompute=Recompute(mode="full"),
    ),
    "recompute tp2 sp zero3": Case(
        layout=Layout(dp=2, tp=2), sequence=True, zero=zero(3), recompute=Recompute(mode="full")
    ),
}


def train(seat, name):
    torch.set_num_threads(1)
    case = CASES[name]
    mesh = seat.mesh(case.layout, case.spec.zero.shard_size(case.layout.dp, case.layout.cp))
    engine = Engine(case.spec)
    pipeline = pipeline_of(case.schedule, case.layout.pp) if case.layout.pp > 1 else None
    engine.form(mesh, schedule=case.schedule, pipeline=pipeline)
    engine.reset()
    skew(engine)
    outcome = trained(engine)
    mesh.close()
    return outcome


@pytest.mark.parametrize("name", CASES)
def test_losses_gradients_norms_and_parameters_are_those_of_one_process(pool, name):
    case = CASES[name]
    outcomes = pool.run(train, case.layout.world_size, name)
    assert_as_expected(outcomes, expected_of(case.model, 2 * case.num_leaves, ROUTER))
