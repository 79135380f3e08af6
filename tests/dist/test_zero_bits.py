"""What does not change a bit of losses, norms and state, and what does: the same-bits contract.

Six leaves: they deal out evenly, unevenly, and leave ranks without any.
"""

from dataclasses import replace

import pytest
import torch
from piped import Piped, assert_same, differences, run
from small_engine import zero

from remesh.parallel.model.recompute import Recompute
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import Precision

DEALT = (6, 1, 2)  # leaves, microbatches in each, and sequences in each of them
SMALL = 1 << 12  # bytes: a bucket a block
MODEL = ModelConfig(
    num_layers=2, width=32, num_heads=4, num_kv_heads=2, ffn_width=48, vocab_size=61, seq_len=20
)
OTHER_MODEL = replace(
    MODEL,
    norm="layer",
    positions="learned",
    activation="gelu",
    bias=True,
    tied=True,
)


def small(stage, **more):
    return {"zero": zero(stage, **{"bucket_bytes": SMALL, **more})}


STAGES = {f"zero{stage}": small(stage) for stage in range(4)}
HYBRIDS = {f"hybrid zero{stage}": small(stage, group=2) for stage in (1, 2, 3)}
VARIANTS = {
    **STAGES,
    "zero0 one bucket": {},
    "zero2 one bucket": small(2, bucket_bytes=1 << 20),
    "zero3 two blocks a bucket": small(3, bucket_bytes=1 << 16),
    "zero3 kept": small(3, keep_gathered=True),
    "zero0 attention": {"recompute": Recompute(mode="attention")},
    "zero1 every second": {**small(1), "recompute": Recompute(mode="full", every=2)},
    "zero3 full": {**small(3), "recompute": Recompute(mode="full")},
}


def outcomes_of(pool, layout, variants, dealt=DEALT):
    """The whole outcome of each variant, by its name."""
    cases = {name: Piped(more={"model": MODEL, **more}) for name, more in variants.items()}
    return run(pool, layout, cases, dealt)


@pytest.fixture(scope="module")
def alone(sessions_pool):
    """Outcomes of a single replica, by what belongs to the bit key."""
    known = {}

    def outcome(tp=1, dealt=DEALT, **key):
        name = f"{tp} {dealt} {key}"
        if name not in known:
            found = outcomes_of(sessions_pool, Layout(tp=tp), {"alone": key}, dealt)
            known[name] = found["alone"]
        return known[name]

    return outcome


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 5, 7, 8])
def test_dp_stage_buckets_and_recompute_change_no_bit(pool, alone, dp):
    hybrids = HYBRIDS if dp % 2 == 0 else {}
    assert_same(outcomes_of(pool, Layout(dp=dp), VARIANTS | hybrids), alone())


def test_nor_do_larger_shard_groups(pool, alone):
    groups = {
        f"zero{stage} by {size}": small(stage, group=size) for stage in (1, 3) for size in (1, 4, 8)
    }
    assert_same(outcomes_of(pool, Layout(dp=8), groups), alone())


@pytest.mark.parametrize("dp", [2, 3, 4, 7])
def test_nor_do_they_with_a_tied_embedding_and_other_parts(pool, alone, dp):
    """And with two microbatches a leaf."""
    more, dealt = {"model": OTHER_MODEL}, (6, 2, 2)
    found = outcomes_of(pool, Layout(dp=dp), with_more(dp, more), dealt)
    assert_same(found, alone(dealt=dealt, **more))


@pytest.mark.parametrize("dp", [2, 3])
def test_nor_do_they_where_backward_writes_the_gradients_of_large_maps(pool, alone, dp):
    large = {"model": replace(MODEL, num_layers=1, width=512, seq_len=8)}
    dealt = (3, 2, 1)
    variants = {name: STAGES[name] | large for name in ("zero0", "zero1", "zero3")}
    assert_same(outcomes_of(pool, Layout(dp=dp), variants, dealt), alone(dealt=dealt, **large))


def with_more(dp, more):
    """Each stage, and with four replicas hybrid sharding, with these settings on top."""
    return {
        name: variant | more for name, variant in (STAGES | (HYBRIDS if dp == 4 else {})).items()
    }


PRECISIONS = {
    "bf16": Precision(compute=torch.bfloat16),
    "bf16 and bf16 gradients": Precision(compute=torch.bfloat16, gradient=torch.bfloat16),
    "bf16 gradients": Precision(gradient=torch.bfloat16),
}


@pytest.mark.parametrize("name", PRECISIONS)
def test_nor_do_they_at_other_precisions(pool, alone, name):
    more = {"precision": PRECISIONS[name]}
    for dp in (3, 4):
        assert_same(outcomes_of(pool, Layout(dp=dp), with_more(dp, more)), alone(**more))


FEW_LEAVES = (4, 1, 2)
TENSOR = {
    "tensor": {},
    "sequence": {"sequence": True},
    "other model": {"model": OTHER_MODEL},
}


@pytest.mark.parametrize(
    ("name", "dp"),
    [(name, dp) for name in ("tensor", "sequence") for dp in (2, 3, 4)] + [("other model", 4)],
)
def test_with_tp_fixed_dp_and_stage_change_no_bit(pool, alone, name, dp):
    more = TENSOR[name]
    found = outcomes_of(pool, Layout(dp=dp, tp=2), with_more(dp, more), FEW_LEAVES)
    assert_same(found, alone(tp=2, dealt=FEW_LEAVES, **more))


def test_so_it_is_at_tp_4(pool, alone):
    more = {"sequence": True}
    variants = {name: STAGES[name] | more for name in ("zero0", "zero3")}
    found = outcomes_of(pool, Layout(dp=2, tp=4), variants, FEW_LEAVES)
    assert_same(found, alone(tp=4, dealt=FEW_LEAVES, **more))


def test_tp_microbatches_and_types_belong_to_the_bit_key(alone):
    """Should one of these ever change no bit, it could leave the key."""
    changes = {
        "microbatch": alone(dealt=(6, 2, 1)),
        "leaves": alone(dealt=(3, 2, 2)),
        "gradients": alone(precision=PRECISIONS["bf16 gradients"]),
        "compute": alone(precision=PRECISIONS["bf16"]),
        "tp": alone(tp=2),
        "sequence": alone(tp=2, sequence=True),
    }
    for what, outcome in changes.items():
        assert differences(outcome, alone()), what
