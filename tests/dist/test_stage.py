"""A model cut into stages anywhere, activations and gradients carried by hand: the same bits."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from small_engine import MODEL, filler, spec, started

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.model.recompute import Recompute
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.plan.buckets import plan_visits
from remesh.parallel.plan.errors import Cancelled
from remesh.parallel.plan.model_config import block_parameters
from remesh.parallel.spec import Precision, ZeroSpec
from remesh.parallel.step.stage import Stage
from remesh.parallel.techniques.zero import Gathering

NUM_LEAVES, MICROBATCHES = 3, 2
BLOCKS = len(block_parameters(MODEL))
CUTS = [cuts for number in (1, 2) for cuts in combinations(range(1, BLOCKS), number)]
A_BUCKET_A_BLOCK = {"zero": ZeroSpec(bucket_bytes=1 << 10)}
TIED = replace(
    MODEL, norm="layer", positions="learned", activation="gelu", bias=True, qk_norm=True, tied=True
)
KINDS = {
    "plain": {},
    "a bucket a block": A_BUCKET_A_BLOCK,
    "tied": {"model": TIED},
    "tied, a bucket a block": {"model": TIED, **A_BUCKET_A_BLOCK},
    "layers again": {"recompute": Recompute(mode="full", every=2)},
    "attention again": {"recompute": Recompute(mode="attention")},
    "bf16": {"precision": Precision(compute=torch.bfloat16, gradient=torch.bfloat16)},
    "bf16 weights": {"precision": Precision(compute=torch.bfloat16), "model": TIED},
    "any bits": {"same_bits": False},
}


def tokens_of(microbatch):
    batch = np.empty((2, MODEL.seq_len + 1), dtype=np.uint16)
    filler(1)(2 * microbatch, batch)
    tokens = torch.from_numpy(batch.astype(np.int64))
    return tokens[:, :-1], tokens[:, 1:]


def run(stages, microbatch, *, leaf, ends_leaf):
    """The loss of a microbatch, once forward and backward have gone through all stages."""
    x, targets = tokens_of(microbatch)
    passages, gradient = [], None
    for stage in stages:
        is_last = stage is stages[-1]
        passages.append(stage.forward(x, targets if is_last else None))
        assert (passages[-1].losses is not None) == is_last
        x = passages[-1].outputs[-1].detach().clone()  # as it would arrive from another rank
    loss = passages[-1].losses.cross_entropy.item()
    for stage, passage in reversed(list(zip(stages, passages, strict=True))):
        gradient = stage.backward(passage, gradient, leaf, ends_leaf=ends_leaf)
        assert (gradient is None) == (stage is stages[0])
        gradient = None if gradient is None else gradient.clone()
    return loss


def stage_of(assembly, span, blocks=None):
    """Its weights are all there before it begins."""
    visits = plan_visits([frozenset(range(len(assembly.weights)))])
    gathering = Gathering(assembly.weights, visits, assembly.mesh.world, frees=False)
    return Stage(blocks or assembly.model.blocks, span, gathering, assembly.accumulators)


def losses_and_gradients(cuts, kind):
    """Of a global batch through a model that is cut before these blocks."""
    assembly = started(Mesh.alone(), spec(NUM_LEAVES, MICROBATCHES, **KINDS[kind])).assembly
    stages = [stage_of(assembly, range(*span)) for span in pairwise((0, *cuts, BLOCKS))]
    losses = [
        run(stages, leaf * MICROBATCHES + n, leaf=leaf, ends_leaf=n == MICROBATCHES - 1)
        for leaf in range(NUM_LEAVES)
        for n in range(MICROBATCHES)
    ]
    return losses, [gradient.clone() for gradient in assembly.accumulators.finish()]


@pytest.mark.parametrize("kind", KINDS)
def test_two_or_three_stages_give_the_bits_of_one(kind):
    losses, gradients = losses_and_gradients((), kind)
    assert len(CUTS) == 6
    assert all(gradient.any() for gradient in gradients)
    for cuts in CUTS:
        seen, found = losses_and_gradients(cuts, kind)
        assert seen == losses, cuts
        assert all(map(torch.equal, found, gradients)), cuts


def test_once_a_generation_is_over_no_pass_goes_on_to_another_block():
    assembly, computed = started(Mesh.alone(), spec(NUM_LEAVES, MICROBATCHES)).assembly, []
    world = assembly.mesh.world

    def struck(number, block):
        def compute(x, targets):
            computed.append(number)
            if number == BLOCKS - 2 and len(computed) > BLOCKS:
                world.fence.up(world.generation)
            return block.compute(x, targets)

        return replace(block, compute=compute)

    blocks = [struck(number, block) for number, block in enumerate(assembly.model.blocks)]
    stage = stage_of(assembly, range(BLOCKS), blocks)
    whole = stage.forward(*tokens_of(0))
    with pytest.raises(Cancelled):
        stage.forward(*tokens_of(1))
    assert computed == [*range(BLOCKS), *range(BLOCKS - 1)]
    with pytest.raises(Cancelled):
        stage.backward(whole, None, 0, ends_leaf=False)
    assert len(whole.outputs) == BLOCKS


def test_one_stage_gives_the_gradients_of_the_model_run_whole():
    losses, gradients = losses_and_gradients((), "plain")
    model = Transformer(MODEL)
    model.reset(spec().seed)
    total = 0.0
    for number, loss in enumerate(losses):
        tokens, targets = tokens_of(number)
        whole = torch.nn.functional.cross_entropy(
            model(tokens).flatten(0, 1), targets.flatten(), reduction="sum"
        )
        assert loss == pytest.approx(whole.item(), rel=1e-6)
        total = total + whole
    total.backward()
    state = started(Mesh.alone(), spec()).shard_state
    for bucket, gradient in zip(state.buckets, gradients, strict=True):
        for name, place in bucket.plan.places.items():
            part = gradient[place.start : place.stop].view(place.shape)
            torch.testing.assert_close(part, model.get_parameter(name).grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("recompute", "whole", "attention"),
    [
        (Recompute(), [], []),
        (Recompute(mode="full"), [1, 2, 3], []),
        (Recompute(mode="full", every=2), [1, 3], []),
        (Recompute(mode="attention", every=2), [], [1, 3]),
    ],
)
def test_the_model_says_which_blocks_are_computed_again(recompute, whole, attention):
    with torch.device("meta"):
        model = Transformer(replace(MODEL, num_layers=3), recompute=recompute)
    assert [n for n, block in enumerate(model.blocks) if block.recomputed] == whole
    assert [n for n, layer in enumerate(model.layers, 1) if layer.attention.recompute] == attention


def test_the_model_says_which_blocks_read_weights_in_backward():
    with torch.device("meta"):
        reads = [block.reads_weights for block in Transformer(MODEL).blocks]
    assert reads == [False, *[True] * (BLOCKS - 1)]
