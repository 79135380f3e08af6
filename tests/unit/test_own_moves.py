"""Each rank plans what it sends and receives by itself; all of it together is one plan."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from counted import calls_made, lines_run
from moved_state import a_rank_lost_of, its_moves

from remesh.parallel.holding.own_moves import OwnMoves
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.optim.optimizer import StateMemory
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.reshard import ReshardError

META = StateMemory(device=torch.device("meta"))
DENSE = ModelConfig(
    num_layers=4,
    width=16,
    num_heads=4,
    num_kv_heads=2,
    ffn_width=40,
    vocab_size=21,
    seq_len=8,
)
MODELS = (
    DENSE,
    replace(DENSE, tied=True, norm="layer", bias=True),
    replace(DENSE, num_experts=4, top_k=2, num_dense_layers=1, num_shared_experts=1),
)
DEGREES = [
    (dp, tp, pp, ep)
    for dp in (1, 2, 3, 4, 6)
    for tp in (1, 2, 4)
    for pp in (1, 2)
    for ep in (1, 2)
    if dp * tp * pp <= 12 and dp % ep == 0
]


def spec_of(model, bucket_elements):
    spec = EngineSpec(
        model=model,
        seed=0,
        num_leaves=4,
        microbatches_per_leaf=1,
        microbatch=1,
        lr=LrCurve(peak=1e-3),
        optimizer=AdamW(),
        clip=1.0,
    )
    return replace(spec, zero=replace(spec.zero, bucket_bytes=4 * bucket_elements))


def draw_mesh(draw, spec):
    """What each rank of some mesh holds."""
    dp, tp, pp, ep = draw.choice([d for d in DEGREES if d[3] == 1 or spec.model.num_experts])
    layout = Layout(dp=dp, tp=tp, pp=pp, ep=ep)
    shards = draw.choice([n for n in range(1, dp + 1) if dp % n == 0 and (n % ep == 0 or n == 1)])
    folded = draw.random() < 0.3 and pp > 1
    pipeline = Pipeline(ranks=pp, chunks=2 if folded else 1, folded=folded)
    cut = spec.cut(layout, shards, pipeline)
    return [cut.held_by(layout, rank) for rank in range(layout.world_size)]


def fragments(spec, held):
    return [fragment for fragment, _ in ShardState(spec, held, META).fragments()]


def both_ways(moves):
    return moves.received(), moves.sent()


def plans(spec, held, lacking):
    found = {rank: OwnMoves(spec, held, lacking, rank) for rank in held}
    return (
        {rank: one.received() for rank, one in found.items()},
        {rank: one.sent() for rank, one in found.items()},
    )


def check(spec, held, lacking):
    """Both ends see the same, and each byte that is lacking comes once, from who has it."""
    received, sent = plans(spec, held, lacking)
    theirs = {
        rank: {f for one in parts for f in fragments(spec, one)} for rank, parts in held.items()
    }
    for rank in held:
        for other in held:
            if other != rank:
                assert received[rank].get(other, []) == sent[other].get(rank, [])
    for rank, wanted in lacking.items():
        times = {f: np.zeros(f.sizes, np.int8) for f in fragments(spec, wanted)}
        for source, moves in received[rank].items():
            for move in moves:
                assert move.held in theirs[source]
                assert move.box.fits
                assert times[move.want][move.write].shape == move.box.sizes
                inside = zip(move.read, move.held.sizes, strict=True)
                assert all(0 <= span.start < span.stop <= size for span, size in inside)
                times[move.want][move.write] += 1
        assert all((count == 1).all() for count in times.values())
    assert not any(received[rank] for rank in held.keys() - lacking.keys())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(8))
def test_both_ends_of_every_move_plan_the_same_and_each_byte_comes_once(seed, model):
    draw = random.Random(seed)
    spec = spec_of(model, draw.choice((1, 1000, 10**6)))
    before, after = draw_mesh(draw, spec), draw_mesh(draw, spec)
    size = max(len(after), len(before))
    held = {rank: [] for rank in range(size)}
    for rank, one in enumerate(before):
        held[draw.choice((rank, rank, draw.randrange(size)))].append(one)
    lacking = {r: one for r, one in enumerate(after) if one not in held[r]}
    check(spec, held, lacking)


@pytest.mark.parametrize("seed", range(6))
def test_replicas_that_are_left_make_up_for_the_lost_ones(seed):
    draw = random.Random(100 + seed)
    spec = spec_of(DENSE, 1000)
    layout = Layout(dp=6, tp=2)
    cut = spec.cut(layout, 2)
    wanted = {rank: cut.held_by(layout, rank) for rank in range(12)}
    lost = draw.sample(range(4, 12), 5)
    held = {rank: [] if rank in lost else [one] for rank, one in wanted.items()}
    check(spec, held, {rank: wanted[rank] for rank in lost})


def test_what_nobody_holds_is_named_by_who_lacks_it_and_by_who_would_send_to_it():
    spec = spec_of(DENSE, 1000)
    layout = Layout(dp=4)
    before, after = spec.cut(layout, 4), spec.cut(layout, 2)
    held = {rank: [before.held_by(layout, rank)] if rank != 1 else [] for rank in range(4)}
    lacking = {rank: after.held_by(layout, rank) for rank in range(4)}
    for rank in (0, 1, 2):
        with pytest.raises(ReshardError, match="nobody holds"):
            both_ways(OwnMoves(spec, held, lacking, rank))
    empty = {rank: [] for rank in range(4)}
    with pytest.raises(ReshardError, match="nobody holds"):
        OwnMoves(spec, empty, lacking, 0).received()


def test_what_a_rank_holds_itself_comes_from_nobody_else():
    """Also where another one has all of it in a part that is cut otherwise."""
    spec, layout = spec_of(DENSE, 10**6), Layout(dp=2)
    whole, half = spec.cut(layout, 1).held_by(layout, 0), spec.cut(layout, 2).held_by(layout, 1)
    received = OwnMoves(spec, {0: [whole], 1: [half]}, {1: whole}, 1).received()
    own = sum(move.box.num_bytes for move in received[1])
    assert own == sum(fragment.num_bytes for fragment in fragments(spec, half))
    check(spec, {0: [whole], 1: [half]}, {1: whole})


@pytest.mark.parametrize("num_joiners", [1, 3, 8])
def test_those_that_hold_the_same_share_the_load(num_joiners):
    """speed 2: also where one bucket holds all of it."""
    spec, num_holders = spec_of(replace(DENSE, num_layers=12), 10**9), 4
    layout = Layout(dp=num_holders + num_joiners)
    whole = spec.cut(layout, 1).held_by(layout, 0)
    held = {rank: [whole] if rank < num_holders else [] for rank in range(layout.dp)}
    lacking = {rank: whole for rank, parts in held.items() if not parts}
    _, sent = plans(spec, held, lacking)
    loads = Counter()
    for rank, moves in sent.items():
        loads[rank] += sum(move.box.num_bytes for all_of in moves.values() for move in all_of)
    largest = max(f.num_bytes for f in fragments(spec, whole))
    even = sum(loads.values()) / num_holders
    assert set(loads) == set(range(layout.dp))
    for rank in range(num_holders):
        assert abs(loads[rank] - even) <= 6 * largest


def test_a_rank_of_thousands_looks_at_its_own_boxes_only():
    """speed 2, parallel A9: every rank planned for every rank, 7.5 s at 256 of them."""
    looked = {}
    for num_ranks in (64, 256, 4_096):
        problem = a_rank_lost_of(num_ranks)
        looked[num_ranks] = calls_made(its_moves, problem)["Fragment.meet"]
    assert looked[4_096] < looked[256] <= 1.2 * looked[64] < 5_000


def test_what_a_rank_does_for_each_other_one_is_little():
    few, many = 512, 2_048
    lines = {num: lines_run(its_moves, a_rank_lost_of(num)) for num in (few, many)}
    assert (lines[many] - lines[few]) / (many - few) < 60
