"""What the checks of a simulated run take for right, where a mesh or a start before matters."""

from random import Random

import pytest
from control_values import options
from ladders import mixed

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.events import (
    NodeJoined,
    NodeRefused,
    NodeSilent,
    RestoreFailed,
    RunStarted,
    WorkerReady,
)
from remesh.orchestrator.control.words.records import (
    CheckpointState,
    Member,
    PeerState,
)
from remesh.orchestrator.plan.rung import Rung
from remesh.orchestrator.sim.checks.invariants import Invariants
from remesh.orchestrator.sim.checks.whole_run import WholeRun
from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.network import Network
from remesh.orchestrator.sim.shells.sim_host import Host
from remesh.orchestrator.sim.shells.world import Settings, World
from remesh.orchestrator.sim.surroundings.outages import Outages
from remesh.orchestrator.sim.surroundings.watches import Watches
from remesh.parallel.plan.layout import Layout

SINGLE = Rung(layout=Layout())


def form(generation, restore, rung=SINGLE, workers=("worker-0",)):
    members = tuple(
        Member(worker=name, node="a", rank=rank, at_step=None) for rank, name in enumerate(workers)
    )
    return Form(
        generation=generation, rung=rung, members=members, restore=restore, from_step=restore.step
    )


@pytest.mark.parametrize(
    ("source", "is_given_up"),
    [
        (CheckpointState(step=20, name="c"), True),
        (PeerState(step=20, source=0, slots=()), False),
    ],
)
def test_a_checkpoint_that_each_of_two_starts_could_not_read_has_failed_too_often(
    source, is_given_up
):
    """Seed 109317. What ranks and vaults held is another state in each start."""
    whole = WholeRun()
    for generation in (3, 4):
        controller = Controller(options())
        for event in (NodeJoined(node="a", slots=1), RunStarted()):
            controller.handle(event, 0.0)
        watch = Invariants(controller, whole=whole)
        watch.formed[generation] = form(generation, source)
        assert not watch._has_failed(source)
        watch._note(
            RestoreFailed(worker="worker-0", generation=generation, name="c", error="hash differs")
        )
    assert watch._has_failed(source) == is_given_up


def test_a_holder_with_nobody_beside_it_is_asked_of_no_mesh_of_larger_units():
    """Seed 106384: what it holds is newer, and only a mesh of other bits has a place for it."""
    pairs_or_singles = mixed({"tp": 2, "max_dp": 2}, {"max_dp": 3})
    controller = Controller(options(ladder=pairs_or_singles))
    watch = Invariants(controller)
    started = (NodeJoined(node="a", slots=2), NodeJoined(node="b", slots=2), RunStarted())
    for event in started:
        watch.after(event, controller.handle(event, 0.0))
    on_a, on_b = ([one.name for one in controller.state.roster.on(node)] for node in "ab")
    for name in (*on_a, on_b[0]):
        node = controller.state.roster.workers[name].node
        controller.handle(WorkerReady(worker=name, node=node, pid=1), 1.0)
    pair, *_, triple = sorted(pairs_or_singles.rungs(), key=lambda one: one.unit.workers < 2)
    old = form(1, CheckpointState(step=12, name="c"), triple, (*on_a, on_b[0]))
    new = form(2, CheckpointState(step=12, name="c"), pair, on_a)

    def asked(name, mesh):
        return list(watch._within_reach(old, {name: 12}, mesh))

    assert asked(on_a[0], new)
    assert asked(on_b[0], old)
    assert not asked(on_b[0], new)
    watch.ending = {on_a[1]}
    assert not asked(on_a[0], new)


class Watched:
    """A healthy node, what the controller is told of it, and what becomes of it."""

    def __init__(self, *, known):
        world = World(Agenda(), Random(0), Settings(steps=9, every=3, step_s=1.0), None)
        self.agenda, self.told, self.done, self.known = world.agenda, [], [], known
        self.outages = Outages(
            world=world, processes={}, meshes={}, tell=self.told.append, restart=lambda: None
        )
        self.watches = Watches(
            world=world,
            network=Network(
                world.agenda, Random(0), doubled=0.0, delayed=0.0, lost=0.0, again_s=1.0
            ),
            outages=self.outages,
            tell=self.told.append,
            knows=lambda _: self.known,
            end_all=lambda host: self.done.append(f"{host.name} is cleared"),
            resume=lambda _: None,
            offer=self.offer,
        )

    def offer(self, host):
        self.done.append(f"{host.name} is offered")
        self.known = True

    def give_up(self):
        self.known = False

    def err(self):
        self.watches.err(Host(name="a", slots=1, address="a"))
        return self.go_on()

    def go_on(self):
        while self.agenda.step():
            pass
        return [type(event) for event in self.told]


def test_a_healthy_node_that_is_done_without_is_cleared_and_comes_home():
    """Seed 117352: it was never offered again."""
    watched = Watched(known=False)
    assert watched.err() == [NodeRefused, NodeSilent]
    assert watched.done == ["a is cleared", "a is offered"]


def test_so_is_one_that_is_done_without_long_after_it_is_heard_again():
    """Seed 160575: its silence was told to a controller that came back after it was over."""
    watched = Watched(known=True)
    watched.watches.cut(Host(name="a", slots=1, address="a"), 0.1)
    watched.agenda.after(30.0, watched.give_up)
    assert watched.go_on() == []
    assert watched.done == ["a is cleared", "a is offered"]


def test_one_that_is_still_counted_on_stays_as_it_is():
    watched = Watched(known=True)
    assert watched.err() == [NodeRefused, NodeSilent]
    assert watched.done == []


def test_a_controller_that_is_away_takes_nobody_for_gone():
    """It holds no connection that could be refused, and waits for nobody's beats."""
    watched = Watched(known=False)
    watched.outages.away = True
    assert watched.err() == []
    assert watched.done == []
