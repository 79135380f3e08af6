"""The meshes that a run may have: which one some workers get, on which nodes, and what it is."""

import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from ladders import flight, ladder, mixed

from remesh.actors.jobs.submit import _ladder
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.plan import ladder as ladder_module
from remesh.orchestrator.plan import rung as rung_module
from remesh.orchestrator.plan import staging as staging_module
from remesh.orchestrator.plan.ladder import Flight, Ladder
from remesh.orchestrator.plan.planner import ladder_of
from remesh.orchestrator.plan.rung import Rung, Unit, changed_bits
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.pieces import shard_size

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
PAIR = Unit(workers=2)


def local(*overrides, nodes=2, places=2, address=None):
    options = RunOptions(nodes=nodes, workers_per_node=places, address=address)
    return _ladder(load_job(TINY, overrides), options)


@pytest.mark.parametrize(
    ("overrides", "nodes", "places", "max_dp"),
    [
        ([], 2, 2, 4),
        ([], 1, 3, 3),
        (["elastic.max_workers=2"], 2, 2, 2),
        (["parallel.tp=2"], 2, 2, 2),
        (["parallel.tp=2", "elastic.max_workers=8"], 2, 3, 2),
        (
            ["parallel.tp=2", "elastic.max_workers=8", "parallel.allow_cross_node_tp=true"],
            2,
            3,
            3,
        ),
        (["zero.stage=1", "zero.group=2"], 3, 1, 2),
        (["parallel.dp=2", "zero.stage=3"], 2, 2, 2),
    ],
)
def test_replicas_are_those_that_have_room(overrides, nodes, places, max_dp):
    highest = local(*overrides, nodes=nodes, places=places).highest
    assert highest.layout.dp == max_dp
    assert highest.workers == max_dp * highest.unit.workers


def test_nodes_without_room_for_a_mesh_are_refused_with_the_numbers():
    with pytest.raises(UserError) as caught:
        local("parallel.tp=4", nodes=2, places=2)
    assert str(caught.value) == (
        "--nodes 2 with --workers-per-node 2 has no room for a mesh of 4 workers, each 4 of them "
        "on one node; use more, or a smaller parallel.tp or zero.group"
    )
    with pytest.raises(UserError, match="no room for a mesh of 4 workers; use more"):
        local("zero.stage=1", "zero.group=4", nodes=1, places=3)
    assert local("parallel.tp=4", nodes=1, places=1, address="auto").units == (Unit(workers=4),)


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("group", [0, 1, 2, 3])
def test_the_largest_rung_is_the_last_of_all_that_fit(tp, group):
    found = ladder(max_dp=6, tp=tp, zero_stage=1, zero_group=group)
    rungs = list(found.rungs())
    assert [rung.layout.dp for rung in rungs] == list(range(group or 1, 7, group or 1))
    for rung in rungs:
        assert rung in found
        assert rung.shards == shard_size(1, group, rung.layout.dp)
        assert rung.cut == Cut.of(rung.layout, rung.shards)
    for num_units in range(9):
        fitting = [rung for rung in rungs if rung.num_units <= num_units]
        assert found.largest(lambda _, n=num_units: n) == (fitting[-1] if fitting else None)
    for at_least in range(8 * tp):
        large = [rung for rung in rungs if rung.workers >= at_least]
        assert found.smallest(at_least) == (large[0] if large else rungs[-1])


def test_a_rung_of_the_jobs_own_bits_and_then_of_the_same_comes_before_a_larger_one_of_others():
    both = mixed({"tp": 2, "max_dp": 4}, {"tp": 1, "max_dp": 8})
    room = {2: 2, 1: 7}

    def pick(**wishes):
        return both.largest(lambda unit: room[unit.workers], **wishes)

    assert str(pick().layout) == "dp=2 tp=2"
    assert str(pick(bit_key="tp=1").layout) == "dp=2 tp=2"
    assert str(pick(bit_key="tp=2", at_least=5).layout) == "dp=7"
    assert pick(at_least=8) is None
    room[2] = 0
    assert str(pick(bit_key="tp=2").layout) == "dp=7"
    assert str(both.highest.layout) == "dp=4 tp=2"  # as large as dp=8, and named first
    assert both.flight_for(lambda _: 0) == both.flights[0]
    assert both.flight_for(lambda unit: room[unit.workers], bit_key="tp=2") == both.flights[1]
    assert both.size(lambda unit: room[unit.workers]) == 7
    assert [rung.workers for rung in both.rungs()] == [1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8]
    three = mixed({"tp": 4}, {"tp": 2}, {"tp": 1})
    room |= {4: 0, 2: 1}
    assert str(three.largest(lambda unit: room[unit.workers], bit_key="tp=2").layout) == "tp=2"
    assert str(three.largest(lambda unit: room[unit.workers], bit_key="tp=4").layout) == "dp=4"


def test_a_rung_improves_on_another_by_the_jobs_own_bits_or_else_by_its_workers():
    both = mixed({"tp": 2, "max_dp": 2}, {"tp": 1, "max_dp": 8})
    pair, five = both.flights[0].rung(1), both.flights[1].rung(5)

    def improves(rung, units, workers=None):
        return both.improves(lambda unit: units // unit.workers, rung, workers or rung.workers)

    assert improves(five, 6)  # by dp=2 tp=2, though that has fewer workers
    assert improves(pair, 4)
    assert not improves(pair, 3)
    assert not improves(both.flights[0].highest, 8)
    assert improves(pair, 2, workers=1)  # as one of its own is not there any more
    assert not both.improves(lambda _: 0, five, 5)


def test_which_bits_change_is_said_by_their_keys():
    assert changed_bits("tp=2 threads=1", "tp=1 threads=1") == "tp was 2 and is 1"
    assert changed_bits("tp=1", "tp=1 sequence=true") == "sequence was unset and is true"


def test_a_rung_says_which_ranks_are_a_unit():
    assert list(Rung(layout=Layout(dp=2, tp=2), unit=PAIR).units()) == [range(2), range(2, 4)]


def test_flights_and_ladders_that_cannot_be_are_refused_with_the_numbers():
    with pytest.raises(LayoutError, match="no mesh has 1 replicas: the smallest is dp=2, and 2"):
        Flight(lowest=Layout(dp=2), last=1, step=2)
    with pytest.raises(LayoutError, match="dp=3 does not consist of whole tp groups of 2"):
        Flight(lowest=Layout(dp=3), last=3, unit=PAIR)
    with pytest.raises(LayoutError, match="leaves are dealt to 1 replicas; of dp=1 there are 1 to"):
        Flight(lowest=Layout(), last=2, leaves=(8,))
    with pytest.raises(LayoutError, match="without a rung"):
        Ladder(flights=(), num_leaves=8)
    uneven = Flight(lowest=Layout(dp=2), last=2, leaves=(5, 2))
    with pytest.raises(LayoutError, match="dp=2 is dealt 7 leaves of 8; deal each leaf once"):
        Ladder(flights=(uneven,), num_leaves=8)


def test_a_ladder_ends_where_the_room_ends():
    both = mixed({"tp": 4, "max_dp": 4}, {"max_dp": 8})
    within = both.within(lambda unit: 6 // unit.workers)
    assert [str(rung.layout) for rung in within.rungs()][-2:] == ["dp=5", "dp=6"]
    assert within.units == both.units
    assert both.within(lambda unit: 3 // unit.workers).units == (Unit(),)
    assert both.within(lambda _: 0) is None


def test_a_spare_worker_is_explained():
    hybrid = ladder(max_dp=4, tp=2, zero_stage=1, zero_group=2)
    low, high = hybrid.rungs()
    assert hybrid.spare_reason(high) == "the job has at most 4 replicas"
    assert hybrid.spare_reason(low) == "a mesh has whole groups of 2 replicas, 4 workers at a time"
    assert (hybrid.above(low), hybrid.above(high)) == (high, None)
    assert hybrid.needed(1) == "4 in tp groups of 2 on one node each and ZeRO groups of 2 replicas"
    tensor = ladder(max_dp=4, tp=2)
    lowest = next(tensor.rungs())
    assert tensor.spare_reason(lowest) == "a mesh has whole replicas, 2 workers at a time"
    assert ladder().needed(3) == "3"


def test_what_changes_hands_follows_from_the_cuts():
    quarters, thirds = Cut(shards=4), Cut(shards=3)
    assert quarters.kept(quarters) == 1.0
    assert (thirds.kept(quarters), quarters.kept(thirds)) == (0.5, 0.5)
    assert Cut(shards=8).kept(quarters) == 0.125
    assert Cut(tp=2).kept(Cut()) == 0.0
    for few in range(1, 9):
        for many in range(few + 1, 17):
            both = (min((p + 1) / few, (p + 1) / many) - p / few for p in range(few))
            meeting = sum(max(0.0, length) for length in both)
            assert Cut(shards=few).kept(Cut(shards=many)) == pytest.approx(meeting)


def calls(action):
    """How many functions of the ladder's files an action calls."""
    modules = (ladder_module, rung_module, staging_module)
    files = {module.__file__ for module in modules}
    counted = []

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename in files:
            counted.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return len(counted)


PIPED = ["parallel.pp=4", "parallel.schedule=interleaved", "model.num_layers=8", "elastic.pp=[2]"]


@pytest.mark.parametrize("words", [[], PIPED], ids=["dp", "pp"])
def test_a_ladder_of_sixteen_thousand_workers_is_made_and_picked_from_as_one_of_four(words):
    huge = ["elastic.max_workers=16384", "train.global_batch=16384", "train.microbatch=1"]
    sizes = [load_job(TINY, [*words, *overrides]) for overrides in ([], huge)]
    few, many = (calls(lambda job=job: ladder_of(job)) for job in sizes)
    assert 0 < few == many
    ladders = [ladder_of(job) for job in sizes]
    rooms = [4, 16_000]

    def pick(found, room):
        rung = found.largest(lambda _: room, bit_key=found.highest.bit_key)
        assert rung.workers == room

    few, many = (calls(lambda p=pair: pick(*p)) for pair in zip(ladders, rooms, strict=True))
    assert 0 < few <= many <= few + 2 < 50
    assert len(str(asdict(ladders[1]))) < 1000 * len(ladders[1].flights)


def test_one_builder_makes_the_ladder_of_a_job():
    job = load_job(TINY, ["parallel.tp=2", "zero.stage=1", "zero.group=2"])
    (made,) = ladder_of(job).flights
    (own,) = (flight(max_dp=2, tp=2, zero_stage=1, zero_group=2),)
    assert (made.lowest, made.last, made.step, made.shards, made.unit) == (
        own.lowest,
        own.last,
        own.step,
        own.shards,
        own.unit,
    )
    assert (made.bit_key, made.bucket_elements) == (job.bit_key, job.bucket_elements)
