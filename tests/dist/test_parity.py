"""Every way of sharing a step out, against one fp64 process that sees the whole batch at once."""

from dataclasses import dataclass, field

import pytest
import torch
from one_process import FP64, Z_LOSS, assert_as_expected, expected_of, trained
from small_engine import formed, spec, zero

from remesh.parallel.model.recompute import Recompute
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import ZeroSpec

SIZES = {
    "num_layers": 3,
    "width": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_width": 48,
    "vocab_size": 61,
    "seq_len": 20,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """`model`, `zero` and `recompute` are what differs from the defaults."""

    layout: Layout
    model: dict = field(default_factory=dict)
    zero: ZeroSpec = field(default_factory=ZeroSpec)
    recompute: Recompute = field(default_factory=Recompute)
    sequence: bool = False
    same_bits: bool = True
    num_leaves: int = 8
    microbatches_per_leaf: int = 1

    @property
    def spec(self):
        return spec(
            self.num_leaves,
            self.microbatches_per_leaf,
            model=ModelConfig(**{**SIZES, **self.model}),
            z_loss=Z_LOSS,
            precision=FP64,
            zero=self.zero,
            recompute=self.recompute,
            sequence=self.sequence,
            same_bits=self.same_bits,
        )


OTHER_MODEL = {
    "norm": "layer",
    "positions": "learned",
    "activation": "gelu",
    "bias": True,
    "tied": True,
}


LARGE = {"num_layers": 1, "width": 512, "ffn_width": 512, "seq_len": 8}  # written by backward

CASES = {
    "large maps": Case(layout=Layout(dp=2), num_leaves=4, microbatches_per_leaf=2, model=LARGE),
    "large maps plain": Case(layout=Layout(dp=2), num_leaves=4, model=LARGE, same_bits=False),
    "large maps zero3": Case(layout=Layout(dp=2), num_leaves=2, model=LARGE, zero=zero(3)),
    "large tied head": Case(
        layout=Layout(dp=2), num_leaves=2, model={"vocab_size": 8192, "tied": True, "seq_len": 8}
    ),
    "dp3": Case(layout=Layout(dp=3)),
    "dp3 small buckets": Case(layout=Layout(dp=3), zero=zero(0)),
    "dp3 plain": Case(layout=Layout(dp=3), zero=zero(0), same_bits=False),
    "tp2": Case(layout=Layout(tp=2), num_leaves=2),
    "tp4": Case(layout=Layout(tp=4), num_leaves=2),
    "tp2 sp": Case(layout=Layout(tp=2), num_leaves=2, sequence=True),
    "tp4 sp": Case(layout=Layout(tp=4), num_leaves=2, sequence=True),
    "tp2 sp other model": Case(layout=Layout(tp=2), num_leaves=2, sequence=True, model=OTHER_MODEL),
    "tp4 sp qk-norm": Case(
        layout=Layout(tp=4), num_leaves=2, sequence=True, model={"qk_norm": True}
    ),
    **{f"zero{k}": Case(layout=Layout(dp=4), zero=zero(k)) for k in (1, 2, 3)},
    **{
        f"zero{k} plain": Case(layout=Layout(dp=3), zero=zero(k), same_bits=False)
        for k in (1, 2, 3)
    },
    "zero3 kept": Case(layout=Layout(dp=3), zero=zero(3, keep_gathered=True)),
    "zero3 one bucket": Case(layout=Layout(dp=2), zero=ZeroSpec(stage=3)),
    "zero3 tied": Case(layout=Layout(dp=3), zero=zero(3), model=OTHER_MODEL),
    **{f"hybrid 2x2 zero{k}": Case(layout=Layout(dp=4), zero=zero(k, group=2)) for k in (1, 2, 3)},
    "hybrid 2x2 plain": Case(layout=Layout(dp=4), zero=zero(3, group=2), same_bits=False),
    "tp2 zero3": Case(layout=Layout(dp=2, tp=2), num_leaves=4, zero=zero(3), sequence=True),
    "hybrid tp2": Case(
        layout=Layout(dp=4, tp=2), num_leaves=4, zero=zero(3, group=2), model={"tied": True}
    ),
    "tp2 zero1": Case(
        layout=Layout(dp=2, tp=2), num_leaves=4, zero=zero(1), model={"qk_norm": True}
    ),
    "uneven": Case(layout=Layout(dp=5), num_leaves=7, microbatches_per_leaf=2),
    "uneven zero3": Case(layout=Layout(dp=5), num_leaves=7, zero=zero(3), microbatches_per_leaf=2),
    "uneven plain": Case(layout=Layout(dp=5), num_leaves=7, zero=zero(2), same_bits=False),
    **{
        f"recompute {mode} zero3": Case(
            layout=Layout(dp=2), zero=zero(3), recompute=Recompute(mode=mode, every=every)
        )
        for mode, every in (("attention", 1), ("full", 1), ("full", 2))
    },
    "recompute tp2 sp": Case(
        layout=Layout(tp=2), num_leaves=2, sequence=True, recompute=Recompute(mode="full")
    ),
    **{
        f"{name} dp2 tp2": Case(layout=Layout(dp=2, tp=2), num_leaves=4, model={name: value})
        for name, value in (*OTHER_MODEL.items(), ("qk_norm", True), ("num_kv_heads", 4))
    },
}


def train(seat, name):
    torch.set_num_threads(1)
    case = CASES[name]
    mesh, engine = formed(seat, case.layout, case.spec)
    outcome = trained(engine)
    mesh.close()
    return outcome


@pytest.mark.parametrize("name", CASES)
def test_losses_gradients_norms_and_parameters_are_those_of_one_process(pool, name):
    case = CASES[name]
    outcomes = pool.run(train, case.layout.world_size, name)
    batch_size = 2 * case.num_leaves * case.microbatches_per_leaf
    expected = expected_of(case.spec.model, batch_size)
    assert_as_expected(outcomes, expected)
