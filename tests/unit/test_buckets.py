"""How parameters share buffers, how buffers are cut, and when gathered weights live."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remesh.parallel.plan.buckets import (
    plan_buckets,
    plan_flat,
    plan_visits,
    take_turns,
)
from remesh.parallel.plan.pieces import CHUNK, Pieces
from remesh.parallel.plan.schedules.operations import (
    Backward,
    BorderMessage,
    Forward,
    InputBackward,
    KeepCompany,
    Receive,
    Reduce,
    WeightBackward,
)
from remesh.parallel.step.needed_weights import plan_phases

SHAPES = {"a.weight": (3, 5), "norm.weight": (7,), "b.weight": (4, 40), "b.bias": (4,)}
LAYER = {"w": (10, 64), "n": (64,)}


def test_matrices_come_first_and_every_parameter_starts_a_chunk():
    plan = plan_flat(SHAPES)
    assert list(plan.places) == ["a.weight", "b.weight", "norm.weight", "b.bias"]
    assert [place.start for place in plan.places.values()] == [0, 64, 256, 320]
    assert plan.num_decayed == 256
    assert plan.size == 384


def test_no_chunk_holds_two_parameters_however_blocks_are_put_together():
    for limit in (0, 1500, 10**6):
        for bucket in plan_buckets(dict.fromkeys(range(4), LAYER), limit):
            places = sorted(bucket.plan.places.values(), key=lambda place: place.start)
            for one, after in pairwise(places):
                assert -(-one.stop // CHUNK) <= after.start // CHUNK


def named(*numbers):
    return {n: {f"{n}.{name}": shape for name, shape in LAYER.items()} for n in numbers}


@pytest.mark.parametrize(
    ("limit", "spans"),
    [
        (0, [range(1), range(1, 2), range(2, 3), range(3, 4)]),
        (2 * 704, [range(2), range(2, 4)]),
        (3 * 704, [range(3), range(3, 4)]),
        (10**9, [range(4)]),
    ],
)
def test_blocks_join_up_to_the_limit_and_are_never_cut(limit, spans):
    buckets = plan_buckets(named(*range(4)), limit)
    assert [bucket.blocks for bucket in buckets] == spans
    assert sum(len(bucket.plan.places) for bucket in buckets) == 8


@pytest.mark.parametrize(
    ("alone", "spans"),
    [
        ({0}, [range(1), range(1, 4)]),
        ({1}, [range(1), range(1, 2), range(2, 4)]),
        ({3}, [range(3), range(3, 4)]),
    ],
)
def test_a_block_whose_parameters_others_need_too_stays_alone(alone, spans):
    buckets = plan_buckets(named(*range(4)), 10**9, alone)
    assert [bucket.blocks for bucket in buckets] == spans


def test_blocks_of_a_stage_keep_their_numbers():
    buckets = plan_buckets(named(5, 6, 7), 2 * 704)
    assert [bucket.blocks for bucket in buckets] == [range(5, 7), range(7, 8)]


NEEDS = {0: frozenset({0}), 1: frozenset({1}), 2: frozenset({2}), 3: frozenset({0, 3})}
SPANS = {0: range(2), 3: range(2, 4)}
READS = {1, 2, 3}


def phases(*schedule):
    return [set(phase) for phase in plan_phases(schedule, SPANS, NEEDS, READS)]


def test_each_block_of_each_pass_is_a_phase_in_the_order_of_the_schedule():
    schedule = [
        Forward(microbatch=0),
        Forward(microbatch=1, stage=3),
        Backward(microbatch=1, leaf=0, ends_leaf=True, stage=3),
        Reduce(),
    ]
    assert phases(*schedule) == [{0}, {1}, {2}, {0, 3}, {0, 3}, {2}]


def test_backward_needs_weights_where_it_reads_them_and_gradients_of_weights_need_none():
    message = BorderMessage(what="gradient", border=0, microbatch=0)
    inputs, weights = (
        InputBackward(microbatch=0),
        WeightBackward(microbatch=0, leaf=0, ends_leaf=True),
    )
    assert phases(Receive(peer=1, message=message), inputs, weights) == [{1}, set(), set(), set()]


@pytest.mark.parametrize(
    ("what", "operation"),
    [
        ("forward", Forward(microbatch=0, stage=3)),
        ("backward", Backward(microbatch=0, leaf=0, ends_leaf=True, stage=3)),
        ("input", InputBackward(microbatch=0, stage=3)),
        ("weight", WeightBackward(microbatch=0, leaf=0, ends_leaf=True, stage=3)),
    ],
)
def test_an_empty_visit_needs_what_the_others_need(what, operation):
    company = KeepCompany(what=what, number=0, stage=3)
    assert phases(company) == phases(operation)
    assert len(phases(company)) == 2


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9))
def test_pieces_cover_a_buffer_once_and_start_at_chunks(chunks, num_shards, num_replicas):
    pieces = Pieces(size=chunks * CHUNK, num_shards=num_shards, num_replicas=num_replicas)
    spans = [pieces.shard(number) for number in range(num_shards)]
    assert [e for span in spans for e in span] == list(range(pieces.size))
    assert all(span.start % CHUNK == 0 for span in spans)
    assert max(len(span) for span in spans) <= pieces.shard_size
    parts = [pieces.piece(position) for position in range(pieces.num_pieces)]
    elements = sorted(element for part in parts for element in part)
    assert elements == list(range(pieces.num_shards * pieces.shard_size))
    assert max(map(len, parts)) <= pieces.piece_size
    if pieces.in_order:
        full = [part for part in parts if part]
        assert [part.start for part in full] == [n * pieces.piece_size for n in range(len(full))]


def test_a_shard_is_made_of_the_pieces_of_its_owners_and_ends_where_it_ended():
    for num_replicas in (1, 2, 3, 5):
        pieces = Pieces(size=64 * 13, num_shards=2, num_replicas=num_replicas)
        assert [pieces.shard(number).start for number in range(2)] == [0, 64 * 7]
        for position in range(pieces.num_pieces):
            piece, shard = pieces.piece(position), position % 2
            assert shard * pieces.shard_size <= piece.start <= piece.stop
            assert piece.stop <= (shard + 1) * pieces.shard_size


def test_a_bucket_is_freed_when_the_next_phase_does_not_need_it():
    needs = [frozenset(n) for n in ({0}, {1}, {2}, {2}, {1}, set())]
    visits = plan_visits(needs)
    alive, most = set(), 0
    for visit in visits:
        assert set(visit.needs) <= alive | set(visit.needs)
        alive |= {*visit.needs, *visit.prefetches}
        most = max(most, len(alive))
        alive -= set(visit.releases)
    assert most == 2  # one in use, one on its way
    assert not alive
    assert [visit.releases for visit in visits] == [(0,), (1,), (), (2,), (1,), ()]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2, 5, 9])
def test_buckets_take_turns_in_as_much_memory_as_is_used_at_once(num_layers, tied):
    blocks = [frozenset({n}) for n in range(num_layers + 2)]
    blocks[-1] |= blocks[0] if tied else set()
    backward = [*reversed(blocks[1:]), frozenset()]
    visits = plan_visits([*blocks, *backward] * 2)
    turns = take_turns(visits)
    assert len(set(turns)) == (3 if tied else 2)
    there = set()
    for visit in visits:
        there |= {*visit.needs, *visit.prefetches}
        assert len({turns[bucket] for bucket in there}) == len(there)
        there -= set(visit.releases)
