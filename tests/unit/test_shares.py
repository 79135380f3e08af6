import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.plan.shares import tensor_shares

SIZES = {
    "num_layers": 1,
    "width": 48,
    "num_heads": 12,
    "num_kv_heads": 4,
    "ffn_width": 24,
    "vocab_size": 61,
    "seq_len": 24,
}


def shares_of(tp, *, sequence=False, **sizes):
    """The shares of every rank, by name."""
    config = ModelConfig(**(SIZES | sizes))
    ranks = [tensor_shares(config, tp, rank, sequence=sequence) for rank in range(tp)]
    return {name: [shares[name] for shares in ranks] for name in ranks[0]}


@st.composite
def divisible(draw):
    """A model and a degree that it can be cut by."""
    per_rank, tp = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    num_heads = per_rank * tp
    fitting = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
    kv_heads = draw(st.sampled_from([n for n in fitting if n % tp == 0 or tp % n == 0]))
    return tp, {
        "num_heads": num_heads,
        "num_kv_heads": kv_heads,
        "width": num_heads * 2,
        "ffn_width": tp * draw(st.integers(1, 4)),
        "seq_len": tp * draw(st.integers(1, 4)),
        "vocab_size": draw(st.integers(1, 40)),
    }


@given(divisible(), st.booleans())
def test_the_shares_of_all_ranks_cover_each_tensor_once_per_holder_set(drawn, sequence):
    tp, sizes = drawn
    shapes = parameter_shapes(ModelConfig(**(SIZES | sizes)))
    for name, shares in shares_of(tp, sequence=sequence, **sizes).items():
        held = dict.fromkeys(itertools.product(*map(range, shapes[name])), 0)
        for holders in {share.holders for share in shares}:
            boxes = [(shares[rank].offsets, shares[rank].sizes) for rank in holders]
            assert len(set(boxes)) == 1, name
            for point in box(*boxes[0]):
                held[point] += 1
        assert set(held.values()) == {1}, name
        for rank, share in enumerate(shares):
            assert rank in share.holders
            assert share.holders == tuple(sorted(share.holders))
            assert not share.partial or len(share.holders) > 1
            assert share.local_shape[1:] == share.sizes[1:]
        assert len({share.local_shape for share in shares}) == 1


def box(offsets, sizes):
    ranges = [range(o, o + s) for o, s in zip(offsets, sizes, strict=True)]
    return itertools.product(*ranges)


@pytest.mark.parametrize("sequence", [False, True])
def test_one_rank_holds_all_and_sums_nothing(sequence):
    shapes = parameter_shapes(ModelConfig(**SIZES))
    for name, [share] in shares_of(1, sequence=sequence).items():
        assert share.sizes == share.local_shape == shapes[name]
        assert share.holders == (0,)
        assert not share.partial


def test_query_heads_stand_with_their_kv_head():
    shares = shares_of(2)
    query, key = shares["layers.0.attention.query.weight"], shares["layers.0.attention.key.weight"]
    assert [(s.offsets, s.sizes) for s in query] == [((0, 0), (24, 48)), ((24, 0), (24, 48))]
    assert [(s.offsets, s.sizes) for s in key] == [((0, 0), (8, 48)), ((8, 0), (8, 48))]


@pytest.mark.parametrize("module", ["key", "value"])
def test_kv_heads_fewer_than_ranks_are_held_by_neighbours_and_summed(module):
    shares = shares_of(4, num_kv_heads=2)[f"layers.0.attention.{module}.weight"]
    assert [s.holders for s in shares] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert [s.offsets for s in shares] == [(0, 0), (0, 0), (4, 0), (4, 0)]
    assert all(s.partial for s in shares)


def test_a_padded_vocabulary():
    shares = shares_of(4, vocab_size=5)["embedding.weight"]
    assert [s.sizes[0] for s in shares] == [2, 2, 1, 0]
    assert [s.offsets[0] for s in shares] == [0, 2, 4, 5]
    assert {s.local_shape for s in shares} == {(2, 48)}


@pytest.mark.parametrize("sequence", [False, True])
def test_norms_are_summed_where_each_rank_has_its_own_tokens(sequence):
    for name, shares in shares_of(2, sequence=sequence).items():
        if "norm" in name:
            assert [s.holders for s in shares] == [(0, 1), (0, 1)]
            assert all(s.partial == sequence for s in shares)


def test_a_rank_holds_its_part_of_the_matrices():
    """All matrices divide here, so that only the norms count whole."""
    config = ModelConfig(**(SIZES | {"vocab_size": 64}))
    whole = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    norms = 3 * config.width
    for tp in (2, 4):
        shares = tensor_shares(config, tp, 0, sequence=False)
        held = sum(math.prod(share.local_shape) for share in shares.values())
        assert held == (whole - norms) // tp + norms


@pytest.mark.parametrize(
    ("tp", "sizes", "message"),
    [
        (
            8,
            {"num_heads": 28, "num_kv_heads": 4, "width": 56},
            "tp=8 does not divide num_heads=28; use one of 1, 2, 4$",
        ),
        (5, {}, "num_heads=12; use one of 1, 2, 4, 12; tp=5 does not divide num_kv|neither"),
        (6, {}, "tp=6 neither divides num_kv_heads=4 nor is .*; use one of 1, 2, 4, 12$"),
        (4, {"ffn_width": 22}, "tp=4 does not divide ffn_width=22; use one of 1, 2$"),
        (
            4,
            {"seq_len": 6},
            "tp=4 does not divide seq_len=6, .*; use one of 1, 2, or sequence=false",
        ),
        (0, {}, "tp=0 is no degree; use 1 or more"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_with_the_degrees_that_do(tp, sizes, message):
    config = ModelConfig(**(SIZES | sizes))
    with pytest.raises(LayoutError, match=message):
        tensor_shares(config, tp, 0, sequence=True)


def test_the_length_matters_under_sequence_parallelism_only():
    config = ModelConfig(**(SIZES | {"seq_len": 6}))
    assert tensor_shares(config, 4, 0, sequence=False)
    with pytest.raises(LayoutError, match="tp=4 does not divide seq_len=6, which"):
        tensor_shares(config, 4, 0, sequence=True)


def test_a_rank_that_is_not_of_the_group():
    with pytest.raises(LayoutError, match="rank 2 is not one of the 2 ranks"):
        tensor_shares(ModelConfig(**SIZES), 2, 2, sequence=False)
