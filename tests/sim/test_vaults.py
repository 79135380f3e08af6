"""Clusters with vaults: what is lost with whom, and what must never happen."""

import pytest
from control_values import held, options, slot

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.events import (
    NodeJoined,
    RunStarted,
    Tick,
    VaultTold,
    VaultUp,
    WorkerReady,
)
from remesh.orchestrator.control.words.records import (
    CheckpointState,
    Member,
    PeerState,
)
from remesh.orchestrator.plan.rung import Rung
from remesh.orchestrator.sim.checks.invariants import Invariants
from remesh.orchestrator.sim.draws import simulate
from remesh.orchestrator.sim.faults import VAULT_WEIGHTS, PlannedFault
from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.vault import SimVault
from remesh.orchestrator.sim.shells.world import Settings, World, ladder_of_units
from remesh.orchestrator.sim.simulation import Simulation, SimulationError
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.layout import Layout

SHARDED = ladder_of_units(4, shards=0)
STEP_S = 0.3
LAG = 3  # steps: a copy takes up to 0.7 s to its buddy, and the next vote tells


def scene(*faults, seed=1, every=1, ladder=SHARDED, slots=4):
    settings = Settings(
        steps=30, every=100, step_s=STEP_S, ladder=ladder, slots=slots, snapshot_every=every
    )
    outcome = Simulation(seed, settings, list(faults)).run()
    assert outcome.status == "finished"
    return outcome


def recoveries(*faults, seeds=8, **options):
    """The generations that came to be by a fault, and the one before each."""
    lives = [scene(*faults, seed=seed, **options).generations for seed in range(seeds)]
    return [life for one in lives for life in one if life.recovery_s is not None]


@pytest.mark.parametrize("seed", range(200, 240))
def test_every_run_ends_as_it_should_with_and_without_vaults(seed):
    try:
        simulate(seed)
    except SimulationError as error:
        story = "\n".join(error.trace[-40:])
        pytest.fail(f"{error}\n{story}\nagain: python -m remesh.orchestrator.sim --seed {seed}")


def test_all_faults_of_vaults_are_among_the_seeds():
    kinds = {fault.kind for seed in range(200, 240) for fault in simulate(seed).faults}
    assert kinds >= set(VAULT_WEIGHTS)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize(
    "fault",
    [
        PlannedFault(kind="kill", at_s=4.0),
        PlannedFault(kind="kill", at_step=9),
        PlannedFault(kind="kill node", at_s=4.0),
        PlannedFault(kind="kill node", at_step=9),
        PlannedFault(kind="kill worker and vault", at_s=4.0),
        PlannedFault(kind="kill worker and vault", at_step=9),
    ],
    ids=lambda fault: f"{fault.kind}{' at a step' if fault.at_step else ''}",
)
def test_what_a_death_takes_is_in_a_vault_and_storage_is_not_read(fault, every):
    """Replicas that share their state without a second copy, and no checkpoint in reach."""
    found = recoveries(fault, every=every)
    assert found
    for life in found:
        assert "vault" in life.source
        assert life.lost_steps <= every + LAG


def test_a_death_in_a_node_costs_only_what_was_being_copied():
    """The snapshot of the newest step, and that of the one before if it was not sealed yet."""
    assert all(life.lost_steps <= 2 for life in recoveries(PlannedFault(kind="kill", at_s=4.0)))


def test_without_vaults_the_same_death_leads_back_to_the_start():
    assert {
        life.from_step for life in recoveries(PlannedFault(kind="kill", at_s=4.0), every=0)
    } == {0}


def test_the_death_of_a_vault_alone_costs_nothing():
    assert recoveries(PlannedFault(kind="kill vault", at_s=4.0)) == []


def test_all_workers_at_once_come_back_from_the_vaults():
    whole = recoveries(PlannedFault(kind="kill all", at_s=4.0), ladder=ladder_of_units(4))
    assert {life.source.partition(" ")[0] for life in whole} == {"vault"}
    assert all(life.from_step > 0 for life in whole)


def test_a_slot_that_rots_is_replaced_by_its_copy():
    rot = [PlannedFault(kind="rot", at_s=3.9)] * 3
    found = recoveries(*rot, PlannedFault(kind="kill", at_s=4.0), seeds=12)
    assert found
    assert all("vault" in life.source for life in found)


def part(rank):
    return held(rank, dp=2, shard_size=2)


def kept(rank, step):
    return slot("a", part(rank), step)


def form(generation, restore, from_step):
    members = tuple(
        Member(worker=f"worker-{rank}", node="a", rank=rank, at_step=None, held=part(rank))
        for rank in range(2)
    )
    return Form(
        generation=generation,
        rung=Rung(layout=Layout(dp=2), cut=Cut.of(Layout(dp=2), 2)),
        members=members,
        restore=restore,
        from_step=from_step,
    )


@pytest.mark.parametrize(
    ("told", "restore", "from_step", "message"),
    [
        ([kept(0, 0), kept(1, 0)], CheckpointState(step=0, name="c"), 0, "what is in memory"),
        ([kept(0, 0)], PeerState(step=0, source=0, slots=(kept(1, 0),)), 0, "takes"),
        ([kept(0, 0), kept(1, 3)], PeerState(step=0, source=0, slots=(kept(1, 3),)), 0, "takes"),
    ],
)
def test_a_start_from_the_wrong_slots_is_noticed(told, restore, from_step, message):
    controller = Controller(options(zero_stage=3))
    watch = Invariants(controller)
    ready = [WorkerReady(worker=f"worker-{number}", node="a", pid=1) for number in range(2)]
    up = VaultUp(node="a", address="a:1")
    answer = VaultTold(node="a", generation=1, slots=tuple(told))
    for event in (NodeJoined(node="a", slots=2), up, RunStarted(), *ready, answer):
        watch.after(event, controller.handle(event, 0.0))
    with pytest.raises(InvariantError, match=message):
        watch.after(Tick(), [form(2, restore, from_step)])


def test_a_vault_that_gives_up_what_it_promised_is_noticed():
    world = World(Agenda(), None, Settings(steps=9, every=3, step_s=1.0), None)
    vault = SimVault(world.promised, "a", "a:1")
    (first, *_) = vault.lease(1, part(0), 0)
    first.step, first.sealed = 4, True
    world.promised[1] = (4, [(vault, part(0))])
    assert vault.tell(1) == (kept(0, 4),)
    assert vault.find(kept(0, 4)) is first
    assert not vault.may_write(1)
    first.step = 5
    with pytest.raises(InvariantError, match="has given up step 4"):
        vault.tell(1)
    with pytest.raises(InvariantError, match="not there any more"):
        vault.find(kept(0, 4))
