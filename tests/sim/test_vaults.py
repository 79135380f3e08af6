"""Clusters with vaults: what is lost with whom, and what must never happen."""

from random import Random

import pytest
from control_values import held, options, slot
from played import play

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
from remesh.orchestrator.sim.draws import draw, simulate
from remesh.orchestrator.sim.mishaps.faults import VAULT_WEIGHTS, PlannedFault
from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.vault import SimVault
from remesh.orchestrator.sim.shells.world import Settings, World, ladder_of_units
from remesh.orchestrator.sim.simulation import Simulation
from remesh.orchestrator.vault.shelf_words import Claim, CopiedWhole, StableSaid
from remesh.orchestrator.vault.snapshot_pace import MOST_S
from remesh.orchestrator.vault.vault_words import SlotState, SlotWord
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.layout import Layout

SHARDED = ladder_of_units(4, shards=0)
STEP_S = 0.3
INTERVAL = int(MOST_S / STEP_S)  # steps at the most with "auto"
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


@pytest.mark.parametrize("seed", range(200, 290))
def test_every_run_ends_as_it_should_with_and_without_vaults(seed):
    play(seed)


def test_all_faults_of_vaults_are_among_the_seeds():
    kinds = {fault.kind for seed in range(200, 290) for fault in draw(seed).faults}
    assert kinds >= set(VAULT_WEIGHTS)


@pytest.mark.parametrize("every", [1, 4, "auto"])
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
        assert life.lost_steps <= (INTERVAL if every == "auto" else every) + LAG


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


class SimTenant:
    """Has the slots of a lease mapped for as long as it `lives`."""

    def __init__(self):
        self.lives = True
        self.heard = []

    def hear(self, do):
        self.heard.append(do)

    def may_write(self):
        return self.lives

    def vault_died(self):
        self.heard.append("died")


class VaultAlone:
    """A simulated vault with a lease of generation 1, and its world."""

    def __init__(self):
        self.world = World(Agenda(), Random(0), Settings(steps=9, every=3, step_s=1.0), None)
        self.vault = SimVault(self.world, "a", "a:1")
        self.tenant = SimTenant()
        self.told = []
        claim = Claim(generation=1, held=part(0), size_bytes=1, from_step=0)
        self.lease = self.vault.claim(claim, self.tenant)
        self.go_on()
        self.mine = [self.vault.slots[slot] for slot in self.tenant.heard[0].slots]
        for one in self.mine:
            one.mapper = self.tenant

    def go_on(self):
        until_s = self.world.agenda.now_s + 2.0
        while self.world.agenda.now_s < until_s and self.world.agenda.step():
            pass

    def copy(self, number, step, value):
        slot = self.mine[number]
        slot.word, slot.value = SlotWord(state=SlotState.COPIED, step=step), value
        self.vault.say(CopiedWhole(lease=self.lease, number=number, step=step))
        self.go_on()

    def ask(self):
        self.vault.ask(1, self.told.append)
        self.go_on()
        return self.told[-1]


def test_what_a_zombie_writes_later_is_not_in_what_the_simulated_vault_told():
    alone = VaultAlone()
    alone.copy(0, 4, value=44)
    assert alone.ask() == (kept(0, 4),)
    alone.copy(0, 4, value=666)
    assert alone.vault.find(kept(0, 4)).value == 44
    alone.tenant.lives = False
    alone.go_on()
    assert alone.ask() == (kept(0, 4),)


def test_a_slot_that_is_another_than_it_was_told_of_is_noticed():
    alone = VaultAlone()
    alone.copy(0, 4, value=44)
    alone.tenant.lives = False
    assert alone.ask() == (kept(0, 4),)
    alone.vault.find(kept(0, 4)).value = 45
    with pytest.raises(InvariantError, match="is another than it was told of"):
        alone.vault.find(kept(0, 4))


def test_a_slot_that_is_read_or_handed_on_while_a_mapper_may_live_is_noticed():
    alone = VaultAlone()
    alone.copy(0, 4, value=44)
    alone.tenant.lives = False
    alone.ask()
    alone.tenant.lives = True
    with pytest.raises(InvariantError, match="or can be"):
        alone.vault.find(kept(0, 4))
    later = Claim(generation=2, held=part(0), size_bytes=1, from_step=4)
    newer = alone.vault.claim(later, SimTenant())
    alone.go_on()
    with pytest.raises(InvariantError, match="is handed on while a mapper may live"):
        alone.vault.say(StableSaid(lease=newer))


def test_a_vault_that_gives_up_what_it_promised_is_noticed():
    alone = VaultAlone()
    alone.copy(0, 4, value=44)
    alone.world.promised[1] = (4, [(alone.vault, part(0))])
    alone.tenant.lives = False
    assert alone.ask() == (kept(0, 4),)
    alone.vault.shelf.leases[alone.lease].places[0].step = 5
    with pytest.raises(InvariantError, match="has given up step 4"):
        alone.ask()
    with pytest.raises(InvariantError, match="not there any more"):
        alone.vault.find(kept(0, 4))


def test_one_that_had_rotted_where_a_mapper_lived_is_given_up_for_good():
    """Seed 156351: the mapper let go while the others were copied, and it went with its slot."""
    alone = VaultAlone()
    alone.copy(0, 4, value=44)
    alone.copy(1, 5, value=55)
    alone.world.promised[1] = (5, [(alone.vault, part(0))])
    alone.mine[1].rotten = True
    assert alone.ask() == (kept(0, 4),)
    alone.tenant.lives = False
    alone.go_on()
    assert alone.ask() == (kept(0, 4),)


def test_without_room_it_is_said_why_there_are_no_snapshots():
    settings = Settings(
        steps=30, every=10, step_s=STEP_S, ladder=SHARDED, slots=4, snapshot_every=1, room=4
    )
    outcome = Simulation(1, settings, []).run()
    assert outcome.status == "finished"
    said = [line for line in outcome.trace if "no snapshots in memory" in line]
    assert len(said) == 1
    assert "there is no room" in said[0]


@pytest.mark.parametrize("seed", [102508, 102869])
def test_a_node_that_is_cut_off_keeps_its_copies_as_they_are(seed):
    """control B: a lease at a buddy that nobody could reach wiped what it held."""
    simulate(seed)
