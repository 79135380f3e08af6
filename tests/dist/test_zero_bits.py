"""What does not change a bit of losses, norms and state, and what does: the same-bits contract.

Six leaves: they deal out evenly, unevenly, and leave ranks without any.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_engine import spec, started, work_of, zero

from remesh.parallel.model.recompute import Recompute
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import Precision

NUM_STEPS = 2
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


def engine_spec(*, dealt=(6, 1, 2), **more):
    """`dealt`: how many leaves, microbatches in each, and sequences in each of them."""
    num_leaves, microbatches_per_leaf, microbatch = dealt
    chosen = spec(num_leaves, microbatches_per_leaf, **{"model": MODEL, **more})
    return replace(chosen, microbatch=microbatch)


def train(seat, layout, variants):
    """Of each variant: what the steps say, and the state as boxes of whole tensors."""
    torch.set_num_threads(1)
    meshes, outcomes = {}, []
    for variant in variants:
        wanted = engine_spec(**variant)
        shard_size = wanted.zero.shard_size(layout.dp)
        if shard_size not in meshes:
            generation = seat.generation * 1000 + 10**9 + shard_size
            meshes[shard_size] = seat.mesh(layout, shard_size, generation=generation)
        mesh = meshes[shard_size]
        engine = started(mesh, wanted)
        results = [engine.step(step, work_of(mesh, step)) for step in range(1, NUM_STEPS + 1)]
        parts = [(f.name, f.global_shape, f.in_whole, t.numpy()) for f, t in engine.fragments()]
        outcomes.append((results, parts))
    for mesh in meshes.values():
        mesh.close()
    return outcomes


def put_together(outcomes):
    """The results of all ranks, which agree, and whole tensors, of which copies agree."""
    whole, seen = {}, {}
    for results, parts in outcomes:
        assert results == outcomes[0][0]
        for name, shape, where, part in parts:
            tensor = whole.setdefault(name, np.zeros(shape, part.dtype))
            known = seen.setdefault(name, np.zeros(shape, bool))
            assert np.array_equal(tensor[where][known[where]], part[known[where]]), name
            tensor[where], known[where] = part, True
    assert all(known.all() for known in seen.values())
    return outcomes[0][0], whole


def run(pool, layout, variants):
    """The whole outcome of each variant, by its name."""
    ranks = pool.run(train, layout.world_size, layout, list(variants.values()))
    return {
        name: put_together(outcomes)
        for name, outcomes in zip(variants, zip(*ranks, strict=True), strict=True)
    }


def differences(found, expected):
    """Names of what differs in any bit."""
    (results, tensors), (expected_results, expected_tensors) = found, expected
    names = [name for name, t in tensors.items() if t.tobytes() != expected_tensors[name].tobytes()]
    assert tensors.keys() == expected_tensors.keys()
    return names + ["results"] * (results != expected_results)


def assert_same(found, expected):
    assert {name: differences(outcome, expected) for name, outcome in found.items()} == {
        name: [] for name in found
    }


@pytest.fixture(scope="module")
def alone(sessions_pool):
    """Outcomes of a single replica, by what belongs to the bit key."""
    known = {}

    def outcome(tp=1, **key):
        name = f"{tp} {key}"
        if name not in known:
            known[name] = run(sessions_pool, Layout(tp=tp), {"alone": key})["alone"]
        return known[name]

    return outcome


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 5, 7, 8])
def test_dp_stage_buckets_and_recompute_change_no_bit(pool, alone, dp):
    hybrids = HYBRIDS if dp % 2 == 0 else {}
    assert_same(run(pool, Layout(dp=dp), VARIANTS | hybrids), alone())


def test_nor_do_larger_shard_groups(pool, alone):
    groups = {
        f"zero{stage} by {size}": small(stage, group=size) for stage in (1, 3) for size in (1, 4, 8)
    }
    assert_same(run(pool, Layout(dp=8), groups), alone())


@pytest.mark.parametrize("dp", [2, 3, 4, 7])
def test_nor_do_they_with_a_tied_embedding_and_other_parts(pool, alone, dp):
    """And with two microbatches a leaf."""
    more = {"model": OTHER_MODEL, "dealt": (6, 2, 2)}
    assert_same(run(pool, Layout(dp=dp), with_more(dp, more)), alone(**more))


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
        assert_same(run(pool, Layout(dp=dp), with_more(dp, more)), alone(**more))


FEW_LEAVES = {"dealt": (4, 1, 2)}


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
    more = FEW_LEAVES | TENSOR[name]
    expected = alone(tp=2, **more)
    assert_same(run(pool, Layout(dp=dp, tp=2), with_more(dp, more)), expected)


def test_so_it_is_at_tp_4(pool, alone):
    more = FEW_LEAVES | {"sequence": True}
    variants = {name: STAGES[name] | more for name in ("zero0", "zero3")}
    assert_same(run(pool, Layout(dp=2, tp=4), variants), alone(tp=4, **more))


def test_tp_microbatches_and_types_belong_to_the_bit_key(alone):
    """Should one of these ever change no bit, it could leave the key."""
    changes = {
        "microbatch": alone(dealt=(6, 2, 1)),
        "leaves": alone(dealt=(2, 3, 2)),
        "gradients": alone(precision=PRECISIONS["bf16 gradients"]),
        "compute": alone(precision=PRECISIONS["bf16"]),
        "tp": alone(tp=2),
        "sequence": alone(tp=2, sequence=True),
    }
    for what, outcome in changes.items():
        assert differences(outcome, alone()), what
