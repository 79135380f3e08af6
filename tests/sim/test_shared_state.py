"""Clusters whose workers hold parts of the state: tp groups, ZeRO groups, experts, and more."""

from random import Random

import pytest
from control_values import held
from played import play

from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.records import FreshState, Member, PeerState
from remesh.orchestrator.plan.rung import Rung, Unit
from remesh.orchestrator.sim.draws import _draw_ladder
from remesh.orchestrator.sim.mishaps.faults import PlannedFault
from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.coupling import SimMesh
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.parts import held_by_members, held_by_whole_groups, is_whole
from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.world import LADDERS, WHOLE, Settings, World, ladder_of_units
from remesh.orchestrator.sim.simulation import Simulation
from remesh.parallel.plan.cut import Cut, Held
from remesh.parallel.plan.layout import Layout

TENSOR = ladder_of_units(2, workers=2)
SHARDED = ladder_of_units(4, shards=0)
HYBRID = ladder_of_units(4, shards=2)
HYBRID_TENSOR = ladder_of_units(4, workers=2, shards=2)
PIPED = ladder_of_units(2, stages=(2,))
PIPED_TENSOR = ladder_of_units(2, workers=2, stages=(2,))
PIPED_SHARDED = ladder_of_units(2, shards=0, stages=(2,))
ELASTIC = ladder_of_units(1, stages=(4, 3, 2, 1))
EXPERTS = ladder_of_units(4, together=2)
EXPERTS_SHARDED = ladder_of_units(4, shards=0, together=2)
PIPED_EXPERTS = ladder_of_units(2, stages=(2,), together=2)
RING = ladder_of_units(2, workers=2, copies=2)
RING_SHARDED = ladder_of_units(2, workers=2, shards=0, copies=2)
ALL = {
    "cp": RING,
    "cp and zero": RING_SHARDED,
    "tp": TENSOR,
    "zero": SHARDED,
    "hybrid": HYBRID,
    "both": HYBRID_TENSOR,
    "pp": PIPED,
    "pp and tp": PIPED_TENSOR,
    "pp and zero": PIPED_SHARDED,
    "elastic pp": ELASTIC,
    "ep": EXPERTS,
    "ep and zero": EXPERTS_SHARDED,
    "pp and ep": PIPED_EXPERTS,
}
HAVING_COPIES = ["cp", "tp", "hybrid", "both", "pp", "pp and tp", "ep"]


def scene(ladder, *faults, seed=1, slots=4, steps=30):
    settings = Settings(steps=steps, every=10, step_s=0.13, ladder=ladder, slots=slots)
    chosen = [PlannedFault(kind=kind, at_s=at_s) for kind, at_s in faults]
    return Simulation(seed, settings, chosen).run()


@pytest.mark.parametrize("seed", range(50, 110))
def test_every_run_ends_as_it_should_however_its_state_is_cut(seed):
    play(seed)


def test_all_ways_to_cut_the_state_are_among_the_seeds():
    drawn = {_draw_ladder(seed, slots=4) for seed in range(50, 200)}
    assert drawn == {WHOLE, *LADDERS}
    assert _draw_ladder(57, slots=2).smallest(1).workers <= 2


def recoveries(ladder, seeds, slots=4):
    """The generations after the death of one worker amid the training."""
    outcomes = [scene(ladder, ("kill", 3.0), seed=seed, slots=slots) for seed in seeds]
    assert {outcome.status for outcome in outcomes} == {"finished"}
    lives = [life for outcome in outcomes for life in outcome.generations]
    return [life for life in lives if life.recovery_s is not None]


@pytest.mark.parametrize("kind", HAVING_COPIES)
def test_a_death_costs_no_more_than_a_step_where_another_copy_lives(kind):
    """Unless it struck amid a vote that only some of the others took for passed."""
    slots = 8 if kind == "pp and tp" else 4
    recovered = recoveries(ALL[kind], range(10), slots)
    from_peers = [life for life in recovered if "the state of" in life.reason]
    assert len(from_peers) > len(recovered) / 2
    assert all(life.lost_steps <= 1 for life in from_peers)
    for life in recovered:
        assert life in from_peers or "as no live rank holds" in life.reason


@pytest.mark.parametrize(
    ("kind", "part"), [("zero", "shard "), ("pp and zero", "shard "), ("elastic pp", "stage ")]
)
def test_a_death_that_takes_the_only_copy_of_a_part_leads_back_to_the_checkpoint(kind, part):
    recovered = recoveries(ALL[kind], range(5))
    assert recovered
    for life in recovered:
        assert life.from_step in (0, 10, 20)
        assert f"as no live rank holds {part}" in life.reason


@pytest.mark.parametrize(("slots", "left"), [(2, "pp=2"), (3, "pp=3")])
def test_pipelines_are_as_long_as_there_are_workers_for(slots, left):
    """Of two nodes one is lost, and another one comes."""
    outcome = scene(ELASTIC, ("kill node", 3.0), ("join", 5.0), slots=slots, steps=120)
    layouts = [str(life.layout) for life in outcome.generations]
    assert (layouts[0], layouts[-1]) == ("pp=4", "pp=4")
    assert left in layouts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["join", "drain", "scale", "ladder", "layout"])
@pytest.mark.parametrize("cut", ALL)
def test_what_comes_and_goes_as_announced_costs_no_step(cut, kind, seed):
    outcome = scene(ALL[cut], (kind, 2.0), seed=seed)
    assert outcome.status == "finished"
    unsaved = any("CommitFailed(" in line for line in outcome.trace)  # a fault that is drawn too
    assert unsaved or all(
        life.lost_steps == 0 and life.recovery_s is None for life in outcome.generations
    )


def test_meshes_have_whole_groups_only():
    outcome = scene(HYBRID_TENSOR, ("kill", 2.0), ("kill node", 4.0), slots=5)
    sizes = {life.workers for life in outcome.generations}
    assert all(size % 4 == 0 for size in sizes)
    assert outcome.status == "finished"


def test_parts_are_whole_when_all_of_one_cut_are_there():
    assert not is_whole([])
    assert is_whole([held(3, dp=4)])
    assert not is_whole([held(rank, dp=2, tp=2) for rank in (0, 2)])
    assert is_whole([held(rank, dp=2, tp=2) for rank in (0, 3)])
    assert not is_whole([held(rank, dp=4, shard_size=4) for rank in range(3)])
    assert is_whole([held(0, dp=4, shard_size=2), held(3, dp=4, shard_size=2)])
    quarters = [held(rank, dp=4, shard_size=4) for rank in (2, 3)]
    assert not is_whole([held(0, dp=2, shard_size=2), *quarters])


def form(*at_steps, tp=1, shard_size=1, restore=None):
    layout = Layout(dp=len(at_steps) // tp, tp=tp)
    return Form(
        generation=2,
        rung=Rung(layout=layout, cut=Cut.of(layout, shard_size), unit=Unit(workers=tp)),
        members=tuple(
            Member(
                worker=f"w{rank}",
                node="n",
                rank=rank,
                at_step=step,
                held=held(rank, layout=layout, shard_size=shard_size),
            )
            for rank, step in enumerate(at_steps)
        ),
        restore=restore or FreshState(),
        from_step=7,
    )


def test_a_holder_without_its_group_is_within_reach_only_as_a_member():
    old = form(7, 7, 7, None, tp=2)
    steps = {"w0": 7, "w1": 7, "w2": 7}
    assert [part.tensor for _, part in held_by_whole_groups(old, steps)] == [0, 1]
    assert [part.tensor for _, part in held_by_members(old, steps, ["w2", "w3"])] == [0]
    assert list(held_by_whole_groups(old, {**steps, "w1": 6})) == []


def came(order, *offers):
    """A mesh whose members came with these steps, parts and values."""
    mesh = SimMesh(world=None, form=order, processes={}, reachable=None, voted=None)
    for member, (step, part, value) in zip(order.members, offers, strict=True):
        mesh.offers[member.worker] = (step, part, value)
    return mesh


@pytest.mark.parametrize("leaves", [False, True])
def test_an_exchange_that_somebody_has_left_before_all_had_come_fills_nobody(leaves):
    order = form(7, None, restore=PeerState(step=7, source=0))
    mesh = came(order, (7, order.members[0].held, 99), (None, Held(), 0))
    mesh.world = World(Agenda(), Random(0), Settings(steps=9, every=3, step_s=1.0), None)
    mesh.processes = {name: SimProcess(mesh.world, name, "n") for name in ("w0", "w1")}
    first, second = mesh.members
    mesh.share(first)
    if leaves:
        mesh.left(first)
    mesh.share(second)
    while mesh.world.agenda.step():
        pass
    assert [process.at_step for process in mesh.members] == [None if leaves else 7] * 2


def test_a_start_from_parts_that_are_missing_or_do_not_belong_together_is_noticed():
    order = form(7, 7, shard_size=2, restore=PeerState(step=7, source=0))
    first, second = (member.held for member in order.members)
    assert came(order, (7, first, 99), (7, second, 99)).value_at(7) == 99
    with pytest.raises(InvariantError, match="came with"):
        came(order, (7, first, 99), (6, second, 99)).value_at(7)
    with pytest.raises(InvariantError, match="came with"):
        came(order, (7, first, 99), (7, first, 99)).value_at(7)
    with pytest.raises(InvariantError, match="mixture"):
        came(order, (7, first, 99), (7, second, 98)).value_at(7)
    alone = form(7, None, shard_size=2, restore=PeerState(step=7, source=0))
    with pytest.raises(InvariantError, match="not all there"):
        came(alone, (7, first, 99), (None, second, 0)).value_at(7)
