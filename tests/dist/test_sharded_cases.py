"""Public bug reports of comparable systems as tests of whole engines whose state is in shares.

Norms that count a parameter once, means over tokens, steps that all skip together, parameters that
stay equal where they are replicated, and who gets weight decay.
"""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_engine import MODEL, filler, formed, spec, started, state_hash, work_of, zero

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.numerics.losses import IGNORE_INDEX
from remesh.parallel.optim.clip import clip_factor
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.layout import Layout
from remesh.parallel.step.norm import GradientNorm
from remesh.parallel.step.vote import Ballot, vote

ALL_PARTS = replace(MODEL, norm="layer", bias=True, qk_norm=True)


def norm(seat, layout, more, values):
    """Of a gradient whose parameters have these values in their first elements, 0 elsewhere."""
    mesh, engine = formed(seat, layout, spec(4, 1, **more))
    state = engine.shard_state
    gradients = [torch.zeros_like(shard.values) for shard in state.shards]
    for number, bucket in enumerate(state.buckets):
        owned = state.owned(number)
        for name in values.keys() & bucket.plan.places.keys():
            start = bucket.plan.places[name].start
            if start in owned:
                gradients[number][start - owned.start] = values[name]
    root = voted_root(GradientNorm(state, mesh, exact=True), mesh, gradients)
    mesh.close()
    return root, clip_factor(root, 1.0)


def voted_root(norm, mesh, gradients):
    own = norm.measure(gradients)
    total = vote(mesh.world, Ballot(cell=own.cell, norm_units=own.units))
    return norm.total(own, total.cell, total.norm_units).root


SPLIT, REPLICATED, OF_TWO = (
    "layers.0.attention.query.weight",
    "norm.weight",
    "layers.1.attention.key.weight",
)


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        (Layout(tp=4), {}),
        (Layout(tp=4), {"sequence": True}),
        (Layout(dp=2, tp=4), {"zero": zero(3)}),
        (Layout(dp=2, tp=4), {"zero": zero(1)}),
        (Layout(dp=2, tp=4), {}),
    ],
)
def test_the_norm_counts_what_tensor_ranks_share_once(pool, layout, more):
    """NVIDIA-NeMo/RL#3788: once per rank would be the square root of 20. Two kv heads on four
    ranks are held by two each.
    """
    outcomes = pool.run(norm, layout.world_size, layout, more, {SPLIT: 1.0, REPLICATED: 2.0})
    assert set(outcomes) == {(math.sqrt(8), 1 / math.sqrt(8))}
    assert {n for n, _ in pool.run(norm, layout.world_size, layout, more, {OF_TWO: 3.0})} == {
        math.sqrt(18)
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_fast_norm_is_that_of_the_exact_one_but_for_its_last_digits(dtype):
    """In the gradients' own type it would be off by up to 4 in 1000."""
    mesh = Mesh.alone()
    state = started(mesh, spec(4, 1, model=replace(MODEL, vocab_size=6000))).shard_state
    generator = torch.Generator().manual_seed(1)
    sizes = [len(shard.values) for shard in state.shards]
    gradients = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    fast, exact = (
        voted_root(GradientNorm(state, mesh, exact=exact), mesh, gradients)
        for exact in (False, True)
    )
    assert sum(sizes) > 600_000
    assert fast == pytest.approx(exact, rel=1e-5)


class Masked:
    """A `Maths` that counts the first tokens of a sequence only, and scales the objective."""

    def __init__(self, maths, counts, scale=1.0):
        self.embed, self.normed, self.columns = maths.embed, maths.normed, maths.columns
        self._maths, self._counts, self._scale = maths, counts, scale

    def loss(self, logits_BTV, targets_BT, z_loss):
        masked_BT = masked(targets_BT, self._counts)
        losses = self._maths.loss(logits_BTV, masked_BT, z_loss)
        return replace(losses, objective=losses.objective * self._scale)


def masked(targets_BT, counts):
    masked_BT = targets_BT.clone()
    for row_T in masked_BT:
        row_T[counts(row_T) :] = IGNORE_INDEX
    return masked_BT


def by_content(targets_T):
    """From none to all tokens of a sequence, whoever computes it."""
    return int(targets_T[0]) * len(targets_T) // MODEL.vocab_size


def none(_):
    return 0


def train_masked(seat, layout, more):
    mesh, engine = formed(seat, layout, spec(4, 1, **more))
    model = engine.assembly.model
    model.maths = Masked(model.maths, by_content)
    results = [engine.step(step, work_of(mesh, step)) for step in (1, 2)]
    mesh.close()
    return results


@pytest.mark.parametrize(
    ("layout", "more"),
    [(Layout(dp=2), {}), (Layout(dp=4), {"zero": zero(2)}), (Layout(dp=3), {"zero": zero(3)})],
)
def test_sequences_weigh_as_many_tokens_as_they_have(pool, layout, more):
    """PrimeIntellect-ai/prime-rl#1957, huggingface/transformers#34191."""
    [expected] = pool.run(train_masked, 1, Layout(), {})
    assert pool.run(train_masked, layout.world_size, layout, more) == [expected] * layout.dp
    loss, num_tokens = masked_mean(range(8), by_content)
    assert expected[0].loss == pytest.approx(loss, rel=1e-6)
    assert expected[0].tokens == num_tokens < 8 * MODEL.seq_len


def masked_mean(sequences, counts):
    """Cross-entropy of the untrained model over the tokens of these sequences, and their count."""
    model = Transformer(MODEL).double()
    model.reset(7)
    batch = np.empty((8, MODEL.seq_len + 1), dtype=np.uint16)
    filler(1)(0, batch)
    tokens = torch.from_numpy(batch.astype(np.int64))[list(sequences)]
    targets_BT = masked(tokens[:, 1:], counts)
    num_tokens = int((targets_BT != IGNORE_INDEX).sum())
    logits = model(tokens[:, :-1]).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, targets_BT.flatten()).item(), num_tokens


def mask_ranks(seat, layout, more, masked_ranks):
    """The first step with nothing that counts on some replicas, then a normal one."""
    mesh, engine = formed(seat, layout, spec(4, 1, **more))
    before, model = state_hash(engine), engine.assembly.model
    maths = model.maths
    if mesh.data.rank in masked_ranks:
        model.maths = Masked(maths, none)
    first = engine.step(1, work_of(mesh, 1))
    kept = state_hash(engine) == before
    model.maths = maths
    second = engine.step(2, work_of(mesh, 2))
    mesh.close()
    return first, kept, second


SHARED = [
    (Layout(dp=2), {}, range(4)),
    (Layout(dp=2), {"zero": zero(3)}, (0, 1, 4, 5)),  # every second leaf
    (Layout(dp=2, tp=2), {"zero": zero(1)}, range(4)),
]


@pytest.mark.parametrize(("layout", "more", "sequences"), SHARED)
def test_a_replica_without_tokens_leaves_the_mean_to_the_others(pool, layout, more, sequences):
    """NVIDIA-NeMo/Automodel#3796."""
    loss, num_tokens = masked_mean(sequences, len)
    for first, kept, second in pool.run(mask_ranks, layout.world_size, layout, more, {1}):
        assert first.loss == pytest.approx(loss, rel=1e-6)
        assert (first.tokens, first.applied, kept) == (num_tokens, True, False)
        assert second.applied


@pytest.mark.parametrize(("layout", "more", "sequences"), SHARED)
def test_a_step_without_tokens_is_an_empty_one(pool, layout, more, sequences):
    del sequences
    for first, kept, second in pool.run(mask_ranks, layout.world_size, layout, more, {0, 1}):
        told = first.loss, first.grad_norm, first.tokens
        assert told == pytest.approx((math.nan, math.nan, 0), nan_ok=True)
        assert (first.applied, kept, second.applied) == (False, True, True)
        assert second.tokens == 8 * MODEL.seq_len


def replicated(seat, layout, more):
    """Digests of all that this rank holds, by name and place, after 1, 5 and 20 steps."""
    mesh, engine = formed(seat, layout, spec(layout.dp, 1, **more))
    found = []
    for step in range(1, 21):
        engine.step(step, work_of(mesh, step))
        if step in (1, 5, 20):
            found.append(
                {
                    (fragment.name, str(fragment.in_whole)): hashlib.sha256(
                        tensor.contiguous().numpy().tobytes()
                    ).hexdigest()
                    for fragment, tensor in engine.fragments()
                }
            )
    mesh.close()
    return found


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        (Layout(tp=2), {"model": ALL_PARTS}),
        (Layout(tp=4), {}),
        (Layout(tp=4), {"model": ALL_PARTS, "sequence": True}),
        (Layout(dp=2, tp=2), {"model": ALL_PARTS, "sequence": True, "zero": zero(3)}),
        (Layout(dp=2, tp=2), {"zero": zero(1), "same_bits": False, "model": ALL_PARTS}),
        (Layout(dp=4, tp=2), {"zero": zero(2, group=2)}),
    ],
)
def test_what_is_replicated_stays_equal_to_the_bit(pool, layout, more):
    """pytorch/torchtitan#2387, for parameters and moments."""
    outcomes = pool.run(replicated, layout.world_size, layout, more)
    for at_step in zip(*outcomes, strict=True):
        known = {}
        for found in at_step:
            for place, digest in found.items():
                assert known.setdefault(place, digest) == digest, place


def poison(seat, layout, more, where):
    """Step 2 goes wrong on one rank; steps 1 and 3 are as always."""
    mesh, engine = formed(seat, layout, spec(4, 1, **more))
    engine.step(1, work_of(mesh, 1))
    before = state_hash(engine)
    rank, name = where
    handle = None
    if seat.rank == rank:
        parameter = engine.assembly.model.get_parameter(name)
        handle = parameter.register_hook(lambda gradient: gradient * math.nan)
    skipped = engine.step(2, work_of(mesh, 2))
    kept = state_hash(engine) == before
    if handle:
        handle.remove()
    normal = engine.step(3, work_of(mesh, 3))
    mesh.close()
    finite = all(tensor.isfinite().all() for _, tensor in engine.fragments())
    return skipped.applied, kept, normal, finite


@pytest.mark.parametrize("name", ["embedding.weight", REPLICATED])
@pytest.mark.parametrize(
    ("layout", "more", "rank"),
    [
        (Layout(dp=4), {}, 2),
        (Layout(dp=4), {"zero": zero(3)}, 2),
        (Layout(tp=2), {}, 1),
        (Layout(tp=4), {"sequence": True}, 3),
        (Layout(dp=2, tp=2), {"zero": zero(3)}, 3),
        (Layout(dp=4), {"zero": zero(1, group=2)}, 3),
    ],
)
def test_a_gradient_that_one_rank_alone_has_spoiled_is_skipped_by_all(
    pool, layout, more, rank, name
):
    """ecmwf/WeatherGenerator#2724."""
    outcomes = pool.run(poison, layout.world_size, layout, more, (rank, name))
    for applied, kept, normal, finite in outcomes:
        assert (applied, kept, finite) == (False, True, True)
        assert normal == outcomes[0][2]
        assert normal.applied


def decay(seat, layout, more):
    """Weights after a step with zero gradients from weights of 1."""
    mesh, engine = formed(seat, layout, spec(4, 1, **more))
    engine.spec = replace(engine.spec, lr=LrCurve(peak=1.0, kind="constant", warmup_steps=0))
    engine.form(mesh)
    for _, weight in engine.shard_state.weights():
        weight.fill_(1.0)
    engine.loaded(0)
    model = engine.assembly.model
    model.maths = Masked(model.maths, len, scale=0.0)
    result = engine.step(1, work_of(mesh, 1))
    mesh.close()
    weights = [(f.name, len(f.global_shape), t) for f, t in engine.shard_state.weights()]
    return result.applied, result.lr, [(n, d, t.unique().tolist()) for n, d, t in weights]


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        (Layout(), {}),
        (Layout(dp=3), {"zero": zero(1)}),
        (Layout(tp=4), {"sequence": True}),
        (Layout(dp=2, tp=2), {"zero": zero(3)}),
    ],
)
@pytest.mark.parametrize("model", [ALL_PARTS, replace(ALL_PARTS, positions="learned", tied=True)])
def test_decay_is_for_matrices_only(pool, layout, more, model):
    """ServiceNow/Fast-LLM#542."""
    for applied, lr, weights in pool.run(decay, layout.world_size, layout, more | {"model": model}):
        assert (applied, lr) == (True, 1.0)
        for name, num_dims, values in weights:
            assert values == pytest.approx([0.9 if num_dims > 1 else 1.0], rel=1e-6), name
