import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from counted import growth, lines_run
from drawn_layouts import draw_pair
from sized import row_of_tiles, square_of_tiles, stripes

from remesh.parallel.state.fragments import Fragment, cover_problems, flat_boxes, whole
from remesh.parallel.state.reshard import (
    HeldFragment,
    ReshardError,
    by_name,
    ranks_first,
    reshard,
)

ITEM = {"float32": np.float32, "bfloat16": np.int16, "int64": np.int64}


def box(offsets, sizes, shape=(4, 6), name="w", dtype="float32"):
    return Fragment(name=name, global_shape=shape, offsets=offsets, sizes=sizes, dtype=dtype)


def rows(start, stop, num_rows, name="w"):
    return box((start,), (stop - start,), (num_rows,), name)


def spans(moves):
    return [(move.source, move.box.offsets, move.box.sizes) for move in moves]


def arrays(held, full):
    """For each source and fragment its elements of the full tensors."""
    return {
        source: {
            part: full[part.name][whole(part.name, part.global_shape, part.dtype).slices(part)]
            for part in parts
        }
        for source, parts in held.items()
    }


def carried_out(plans, wants, data):
    """The arrays of the destinations. Fails if an element comes twice or never."""
    made = {}
    for rank, moves in plans.items():
        made[rank] = {part: np.zeros(part.sizes, ITEM[part.dtype]) for part in wants[rank]}
        times = {part: np.zeros(part.sizes, np.int8) for part in wants[rank]}
        for move in moves:
            made[rank][move.want][move.write] = data[move.source][move.held][move.read]
            times[move.want][move.write] += 1
        assert all((counts == 1).all() for counts in times.values())
    return made


def same(one, other):
    return one.keys() == other.keys() and all(
        np.array_equal(array, other[rank][part])
        for rank, parts in one.items()
        for part, array in parts.items()
    )


def resharded(have, wants, distance=ranks_first):
    return {rank: reshard(have, want, rank, distance) for rank, want in wants.items()}


def full_tensors(blocks):
    rng = np.random.default_rng(5)
    return {
        tensor.name: rng.integers(1, 30_000, tensor.shape).astype(ITEM[tensor.dtype])
        for block in blocks
        for tensor in block
    }


@pytest.mark.parametrize("seed", range(25))
def test_there_and_back_is_the_identity_for_random_pairs_of_layouts(seed):
    rng = random.Random(seed)
    for _ in range(20):
        blocks, have, want = draw_pair(rng)
        full = full_tensors(blocks)
        distinct = {part for parts in have.values() for part in parts}
        assert cover_problems(distinct) == ()
        assert {part.name for part in distinct} == full.keys()

        there, back = resharded(by_name(have), want), resharded(by_name(want), have)
        moved = carried_out(there, want, arrays(have, full))
        assert same(moved, arrays(want, full))
        assert same(carried_out(back, have, moved), arrays(have, full))
        for rank, moves in there.items():
            own_bytes = sum(part.num_bytes for part in want[rank])
            assert sum(move.box.num_bytes for move in moves) == own_bytes


@pytest.mark.parametrize("num_after", [1, 2, 3, 5, 7, 8])
def test_a_few_elements_on_any_number_of_ranks(num_after):
    """Also more ranks than elements: some then hold nothing, and padding is moved nowhere."""

    def over(num_ranks, num_elements):
        size = -(-num_elements // num_ranks)
        return {
            rank: [
                rows(b.offsets[0], b.offsets[0] + b.sizes[0], num_elements)
                for b in flat_boxes(
                    (num_elements,), (0,), (num_elements,), rank * size, (rank + 1) * size
                )
            ]
            for rank in range(num_ranks)
        }

    for num_elements in (1, 6, 7, 8, 10):
        for num_before in (1, 3, 4, 5):
            have, want = over(num_before, num_elements), over(num_after, num_elements)
            full = {"w": np.arange(num_elements, dtype=np.float32)}
            made = carried_out(resharded(by_name(have), want), want, arrays(have, full))
            parts = [array for rank in made.values() for array in rank.values()]
            assert np.concatenate(parts).tolist() == list(range(num_elements))


def test_an_empty_fragment_takes_no_move():
    assert reshard({}, [rows(6, 6, 6)], 3) == []


def test_experts_of_pipeline_stages_become_those_of_expert_ranks():
    experts = [[f"layers.{layer}.experts.{e}" for e in range(4)] for layer in range(4)]
    by_stage = {s: [whole(name, (2, 3), "float32") for name in experts[s]] for s in range(4)}
    by_expert = {e: [whole(layer[e], (2, 3), "float32") for layer in experts] for e in range(4)}
    there = resharded(by_name(by_stage), by_expert)
    for expert, moves in there.items():
        assert [move.source for move in moves] == [0, 1, 2, 3]
        assert {move.box.name.rpartition(".")[2] for move in moves} == {str(expert)}
    back = resharded(by_name(by_expert), by_stage)
    assert [move.source for move in back[2]] == [0, 1, 2, 3]


def test_what_the_destination_holds_itself_comes_from_nobody_else():
    have = by_name({0: [rows(0, 8, 8)], 1: [rows(4, 8, 8)], "file": [rows(0, 8, 8)]})
    moves = reshard(have, [rows(2, 6, 8)], 1)
    assert spans(moves) == [(1, (4,), (2,)), (0, (2,), (2,))]
    assert [move.is_local for move in moves] == [True, False]
    assert (moves[1].read, moves[1].write) == ((slice(2, 4),), (slice(0, 2),))


def test_a_mixture_of_sources_is_read_from_the_nearest_that_has_each_byte():
    have = by_name(
        {"file": [rows(0, 12, 12)], "vault": [rows(0, 9, 12)], 5: [rows(3, 6, 12)]},
    )
    near = {5: 0, "vault": 1, "file": 2}
    moves = reshard(have, [rows(0, 12, 12)], 1, lambda source, _: near[source])
    assert spans(moves) == [
        (5, (3,), (3,)),
        ("vault", (0,), (3,)),
        ("vault", (6,), (3,)),
        ("file", (9,), (3,)),
    ]


def test_each_destination_has_its_own_near_sources():
    """Ranks 0 to 3 on one node and 4 to 7 on another, of which 0, 1, 4 and 5 hold the state."""
    part = whole("w", (8,), "float32")
    have = {"w": [HeldFragment(fragment=part, holders=(0, 1, 4, 5))]}
    plans = resharded(
        have,
        {rank: [part] for rank in range(8)},
        lambda source, rank: 0 if source // 4 == rank // 4 else 1,
    )
    sources = [moves[0].source for moves in plans.values()]
    assert [sources[rank] for rank in (0, 1, 4, 5)] == [0, 1, 4, 5]
    assert {*sources[2:4]} <= {0, 1}
    assert {*sources[6:8]} <= {4, 5}


def test_who_keeps_its_layout_sends_nothing():
    _, have, _ = draw_pair(random.Random(3))
    plans = resharded(by_name(have), have)
    assert all(move.is_local for moves in plans.values() for move in moves)
    assert {rank: [move.box for move in moves] for rank, moves in plans.items()} == have


def test_cuts_of_two_kinds_are_not_splintered():
    """Each half of the columns is cut into rows of its own: one move a fragment all the same."""
    left = [box((0, 0), (3, 3)), box((3, 0), (1, 3))]
    right = [box((0, 3), (2, 3)), box((2, 3), (2, 3))]
    moves = reshard(by_name({0: left, 1: right}), [box((0, 0), (4, 6))], 2)
    assert sorted(str(move.box) for move in moves) == sorted(str(part) for part in left + right)


def test_equal_sources_share_the_load():
    names = [f"layers.{i}" for i in range(40)]
    have = by_name({rank: [whole(name, (8,), "float32") for name in names] for rank in range(4)})
    counts = Counter(
        move.source for move in reshard(have, [whole(name, (8,), "float32") for name in names], 4)
    )
    assert counts == dict.fromkeys(range(4), 10)


def test_planners_that_know_nothing_of_each_other_still_spread_the_load():
    """Destinations 8 apart, as tensor-parallel peers of many replicas are, each plan alone."""
    part = whole("w", (8,), "float32")
    have = {"w": [HeldFragment(fragment=part, holders=tuple(range(0, 1024, 8)))]}
    counts = Counter(reshard(have, [part], rank)[0].source for rank in range(1024, 2048, 8))
    assert max(counts.values()) <= 4


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([rows(0, 3, 8), rows(5, 8, 8)], r"nobody holds w\[3:5\] of shape \(8,\), which rank 1"),
        ([], r"nobody holds w\[2:7\]"),
        ([rows(0, 9, 9)], r"0 holds w\[0:9\] of a tensor of \(9,\) float32, but \(8,\) float32"),
        ([whole("w", (8,), "bfloat16")], r"\(8,\) bfloat16, but \(8,\) float32 is wanted"),
    ],
)
def test_what_cannot_be_had_is_named(held, message):
    with pytest.raises(ReshardError, match=message):
        reshard(by_name({0: held}), [rows(2, 7, 8)], 1)


@pytest.mark.parametrize("held_and_wanted", [stripes, row_of_tiles, square_of_tiles])
def test_a_move_costs_the_same_among_thousands(held_and_wanted):
    assert growth(lambda num: lines_run(reshard, *held_and_wanted(num), 1), 16**2, 64**2) < 1.5
    assert len(reshard(*held_and_wanted(64**2), 1)) == 64**2


class OnDemand(Mapping):
    """Who holds the tensors of a model under dp=128 pp=16 tp=8 and ZeRO, worked out when asked."""

    DP, PP, TP, LAYERS, WIDTH = 128, 16, 8, 96, 12_288

    def __init__(self):
        self.asked = []

    def __len__(self):
        return self.LAYERS

    def __iter__(self):
        return (f"layers.{layer}.up" for layer in range(self.LAYERS))

    def __getitem__(self, name):
        self.asked.append(name)
        stage = int(name.split(".")[1]) * self.PP // self.LAYERS
        shape, local = (4 * self.WIDTH, self.WIDTH), (4 * self.WIDTH // self.TP, self.WIDTH)
        size = -(-local[0] * local[1] // self.DP)
        return [
            HeldFragment(
                fragment=box(b.offsets, b.sizes, shape, name),
                holders=((dp * self.PP + stage) * self.TP + tp,),
            )
            for tp in range(self.TP)
            for dp in range(self.DP)
            for b in flat_boxes(shape, (tp * local[0], 0), local, dp * size, (dp + 1) * size)
        ]


def test_one_of_16384_ranks_asks_only_for_the_tensors_that_it_wants():
    have = OnDemand()
    shape, share = (4 * have.WIDTH, have.WIDTH), have.WIDTH
    want = [box((share, 0), (share, have.WIDTH), shape, f"layers.{i}.up") for i in range(9, 12)]
    moves = reshard(have, want, 11_000)
    assert have.asked == ["layers.9.up", "layers.10.up", "layers.11.up"]
    assert sum(move.box.num_elements for move in moves) == 3 * share * have.WIDTH
    assert len({move.source for move in moves}) < 3 * 300


def test_the_planner_needs_no_torch():
    code = (
        "import sys, remesh.parallel.state.reshard, remesh.parallel.files.fused, "
        "remesh.parallel.state.writers; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
