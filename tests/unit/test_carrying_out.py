"""What was decided, as orders: one message a node and turn, to those whom it concerns."""

from pathlib import Path

import pytest
from control_drive import running

from remesh.actors.agent.words import (
    AskVault,
    DrainRanks,
    EndRank,
    FenceRanks,
    FormRanks,
    MoveVaults,
    SaveRanks,
    StartRank,
    StartVault,
)
from remesh.actors.controller.carrying_out import VAULT_TRIES, CarryingOut
from remesh.actors.links.holders import LateStarts, holders_on, left_behind, said_of
from remesh.actors.node.offers import Room
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.job.job import load_job

ROOM = Room(node_id="id", slots=2)


class Spec:
    """What it needs of a run."""

    vault_token = "t" * 8

    def __init__(self, job):
        self.job = job


class Post:
    """Links that keep what is given, and a watch that knows which nodes there are."""

    def __init__(self):
        self.started = []
        self.released = []
        self.killed = []
        self.gone = set()
        self.sent = []
        self._given = {}

    def start(self, node, room):
        assert room == ROOM
        self.started.append(node)

    def release(self, node):
        self.released.append(node)

    def kill(self, node):
        self.killed.append(node)

    def give(self, node, order):
        self._given.setdefault(node, []).append(order)

    def send(self):
        if self._given:
            self.sent.append(self._given)
        self._given = {}

    def room(self, node):
        return None if node in self.gone else ROOM

    def never_came(self, node):
        return node in self.gone


class House:
    def __init__(self, job, **options):
        self.drive = running(10, **options)
        self.now_s = 0.0
        self.post = Post()
        self.orders = CarryingOut(
            Spec(job),
            self.drive.controller,
            self.post,
            self.post,
            host="127.0.0.1",
            clock=lambda: self.now_s,
        )

    def tell(self, *events):
        """What each of these comes to, in a turn of its own."""
        for event in events:
            for command in self.drive.do(event):
                if not isinstance(command, cmd.Announce | cmd.Commit | cmd.End):
                    self.orders.carry_out(command)
            self.orders.end_turn(event)

    def told(self, kind):
        """(node, order) of this kind, in the order of the turns."""
        return [
            (node, order)
            for turn in self.post.sent
            for node, orders in turn.items()
            for order in orders
            if isinstance(order, kind)
        ]


@pytest.fixture
def job():
    return load_job(Path(__file__).parents[2] / "examples" / "tiny.toml", ())


@pytest.fixture
def house(job):
    return House(job)


def test_a_fence_goes_once_to_each_node_and_names_its_own_workers(house):
    house.tell(ev.WorkerLost(worker="worker-3", cause="killed"))
    (turn,) = house.post.sent
    fences = {node: orders[0] for node, orders in turn.items()}
    assert {node: sorted(order.workers) for node, order in fences.items()} == {
        "head": ["worker-0", "worker-2"],
        "b": ["worker-1"],
    }
    assert all(isinstance(order, FenceRanks) for order in fences.values())


def test_a_worker_starts_with_a_vault_by_the_agent_of_its_node_and_a_form_goes_to_each(house):
    house.tell(ev.WorkerLost(worker="worker-3", cause="killed"))
    for worker in house.drive.members:
        parked = {"at_step": 10, "drained": False, "held_in": 1}
        house.tell(ev.WorkerParked(worker=worker, generation=1, **parked))
    assert house.post.started == ["b"]
    assert house.post.sent[0]["b"][-2:] == [StartVault(), StartRank(worker="worker-4")]
    (last,) = [turn for turn in house.post.sent if any(map(_forms, turn.values()))]
    forms = {node: next(filter(_is_form, orders)) for node, orders in last.items()}
    assert {node: len(form.ranks) for node, form in forms.items()} == {"head": 2, "b": 1}
    assert len({form.shared.store_port for form in forms.values()}) == 1


def _is_form(order):
    return isinstance(order, FormRanks)


def _forms(orders):
    return any(map(_is_form, orders))


def test_a_worker_on_a_node_that_is_gone_is_not_started(house):
    house.post.gone.add("b")
    house.orders.carry_out(cmd.StartWorker(worker="worker-9", node="b"))
    house.tell(ev.NodeLost(node="b", cause="no beat"))
    assert (house.told(StartRank), house.post.started) == ([], [])
    assert house.post.killed == ["b"]


def test_each_command_about_members_is_an_order_of_its_node(house):
    for command in (
        cmd.EndWorker(worker="worker-1", node="b", reason="frozen"),
        cmd.Drain(generation=1, workers=("worker-0", "worker-1"), save=True, heard_step=9),
        cmd.SaveHeld(generation=1, step=10, workers=("worker-1", "worker-gone")),
        cmd.AskVaults(generation=1, nodes=("head",)),
    ):
        house.orders.carry_out(command)
    house.orders.end_turn(ev.Tick())
    drain = {"generation": 1, "save": True, "heard_step": 9}
    assert house.post.sent == [
        {
            "b": [
                EndRank(worker="worker-1"),
                DrainRanks(workers=("worker-1",), **drain),
                SaveRanks(workers=("worker-1",), generation=1, step=10),
            ],
            "head": [DrainRanks(workers=("worker-0",), **drain), AskVault(generation=1)],
        }
    ]


def test_vaults_that_come_up_together_are_one_change_and_told_whom_they_concern(house):
    """control A7: each was a message to every member of the mesh."""
    house.tell(ev.VaultUp(node="head", address="h:1"), ev.VaultUp(node="b", address="b:1"))
    house.orders.settle(idle=False)
    assert house.told(MoveVaults) == []
    house.orders.settle(idle=True)
    moved = dict(house.told(MoveVaults))
    assert {node: (order.vaults.own, order.vaults.buddy) for node, order in moved.items()} == {
        "head": ("h:1", "b:1"),
        "b": ("b:1", "h:1"),
    }
    house.orders.settle(idle=True)
    house.tell(ev.VaultUp(node="b", address="b:1"))
    house.orders.settle(idle=True)
    assert len(house.told(MoveVaults)) == 2


def test_busy_or_not_the_vaults_of_a_node_are_told_within_half_a_second(house):
    house.orders.settle(idle=True)
    house.tell(ev.VaultUp(node="b", address="b:1"))
    house.now_s = 0.4
    house.orders.settle(idle=False)
    assert house.told(MoveVaults) == []
    house.now_s = 0.6
    house.orders.settle(idle=False)
    assert len(house.told(MoveVaults)) == 2


def test_a_vault_that_dies_is_started_again_before_it_was_there_too(house):
    house.tell(ev.VaultLost(node="b"))
    assert house.told(StartVault) == [("b", StartVault())]


def test_one_that_cannot_start_is_left_alone_after_some_tries(house):
    for _ in range(2 * VAULT_TRIES):
        house.tell(ev.VaultLost(node="b"))
    assert len(house.told(StartVault)) == VAULT_TRIES
    house.tell(ev.VaultUp(node="b", address="b:1"), ev.VaultLost(node="b"))
    assert len(house.told(StartVault)) == VAULT_TRIES + 1


def test_without_snapshots_there_are_no_vaults(job):
    table = job.checkpoint.model_copy(update={"snapshot_every": 0})
    house = House(job.model_copy(update={"checkpoint": table}))
    house.orders.carry_out(cmd.StartWorker(worker="worker-9", node="b"))
    house.tell(ev.VaultUp(node="b", address="b:1"), ev.VaultLost(node="b"))
    house.orders.settle(idle=True)
    assert (house.told(StartVault), house.told(MoveVaults)) == ([], [])


def test_a_node_that_is_let_go_is_released(house):
    house.orders.carry_out(cmd.ReleaseNode(node="b"))
    assert house.post.released == ["b", "b"]


def test_who_holds_a_node_is_named():
    """security B2"""
    groups = {
        "1": {"name": "theirs", "state": "CREATED", "bundles_to_node_id": {0: "n1"}},
        "2": {"name": "gone", "state": "REMOVED", "bundles_to_node_id": {0: "n1"}},
        "3": {"name": "away", "state": "CREATED", "bundles_to_node_id": {0: "n2"}},
    }
    actors = {
        "a": {"Name": "", "ActorClassName": "Other", "State": "ALIVE", "Address": {"NodeID": "n1"}},
        "b": {"Name": "x", "ActorClassName": "Dead", "State": "DEAD", "Address": {"NodeID": "n1"}},
    }
    found = holders_on("n1", actors, groups)
    assert found == ["actor Other", "placement group theirs"]
    assert said_of("n", 1.0, 4, found) == (
        "node n has 1 of 4 processors free, so the run waits for it: they are held by "
        "actor Other, placement group theirs; end those, or leave the node out"
    )
    assert "a, b, c and 2 more" in said_of("n", 0.0, 4, list("abcde"))


def test_nobody_is_said_to_hold_a_node_on_which_our_own_agent_may_be_starting():
    """It was said of every node that joined a busy machine: "has 0 of 2 processors free"."""
    late = LateStarts(None, "own", None, 5.0)
    ours = "actor remesh-own-agent-10.0.0.2-abc-1.1"
    assert [late._is_sure("b", [ours]) for _ in range(9)] == [False] * 9
    assert [late._is_sure("c", []) for _ in range(3)] == [False, False, True]
    assert late._is_sure("d", ["actor theirs"])
    pending = {"Name": "x", "State": "PENDING_CREATION", "Address": {"NodeID": "n1"}}
    assert holders_on("n1", {"a": pending}, {}) == ["actor x"]


def test_what_a_dead_run_has_left_is_known_by_its_name_and_a_living_one_is_left_alone():
    """security B2: a placement group of a dead run held all processors of a node for ever."""
    actors = [
        "remesh-live-controller",
        "remesh-live-agent-10.0.0.2-abc-1.1",
        "remesh-dead-agent-10.0.0.2-abc-1.1",
        "remesh-own-agent-10.0.0.2-abc-1.1",
        "another-dead-agent",
    ]
    groups = ["remesh-dead-10.0.0.2-abc", "remesh-live-10.0.0.2-abc", "", "theirs"]
    assert left_behind(actors, groups, "own") == [
        "remesh-dead-10.0.0.2-abc",
        "remesh-dead-agent-10.0.0.2-abc-1.1",
    ]
