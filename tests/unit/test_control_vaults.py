"""State from vaults: who is asked, how long an answer is waited for, what is made of it."""

import json

import pytest
from control_drive import Drive, of, running
from control_values import held, slot
from counted import growth, lines_run
from sized import slots_of

from remesh.orchestrator.accounts.snapshot import Snapshot, decode, encode
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import (
    CheckpointState,
    FreshState,
    Member,
    PeerState,
)
from remesh.orchestrator.control.words.recovery import decide_restore, slot_label
from remesh.orchestrator.job.amendments import Amendment
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.layout import Layout

FOUR = (("head", 2), ("b", 2))
SAVED = CheckpointState(step=40, name="step-40")


def part(rank, *, dp=4, tp=1, shard_size=4):
    return held(rank, dp=dp, tp=tp, shard_size=shard_size)


def kept(vault, rank, step, generation=1, **cut):
    return slot(vault, part(rank, **cut), step, generation)


def members(*ranks, step=45, nodes="ab", **cut):
    """One a rank whose part it holds; None for one that holds nothing. On these nodes in turn."""
    return [
        Member(
            worker=f"w{number}",
            node=nodes[number % len(nodes)],
            rank=number,
            at_step=None if rank is None else step,
            held=held() if rank is None else part(rank, **cut),
        )
        for number, rank in enumerate(ranks)
    ]


LIVE = "with the state of the live ranks"


@pytest.mark.parametrize(
    ("live", "slots", "restore", "reason"),
    [
        (
            members(0, 1, 3),
            [kept("a", 2, 45), kept("a", 1, 45)],
            PeerState(step=45, source=0, slots=(kept("a", 2, 45),)),
            f"{LIVE} and shard 2 of 4 from the vault of a",
        ),
        (
            members(0, 1, None, 3, nodes="aacd"),
            [kept("b", 2, 45), kept("c", 2, 45), kept("d", 2, 45)],
            PeerState(step=45, source=0, slots=(kept("c", 2, 45),)),
            f"{LIVE} and shard 2 of 4 from the vault of c",
        ),
        (
            members(0, 1, 3),
            [kept("b", rank, 44) for rank in range(4)],
            PeerState(step=44, source=None, slots=tuple(kept("b", rank, 44) for rank in range(4))),
            "with the state in vaults: 4 parts from the vault of b, as neither a live rank nor",
        ),
        (
            members(0, 1, 3),
            [kept("b", rank, 44) for rank in (0, 1, 3)],
            SAVED,
            "with checkpoint step-40, as neither a live rank nor a vault holds shard 2 of 4 at ",
        ),
        (
            members(0, 1, 3),
            [kept("b", rank, 39) for rank in range(4)],
            SAVED,
            "with checkpoint step-40, as neither",
        ),
        (
            members(None, None),
            [kept("b", 0, 45, shard_size=1)],
            PeerState(step=45, source=None, slots=(kept("b", 0, 45, shard_size=1),)),
            "with the state in vaults: all of it from the vault of b",
        ),
        (
            members(0, 1, 2, dp=3, shard_size=3),
            [kept("b", rank, 45) for rank in range(4)],
            PeerState(step=45, source=0),
            LIVE,
        ),
        (
            members(0, dp=1, tp=2, shard_size=1),
            [kept("b", 1, 45, dp=1, tp=2, shard_size=1)],
            PeerState(step=45, source=0, slots=(kept("b", 1, 45, dp=1, tp=2, shard_size=1),)),
            f"{LIVE} and tensor part 1 of 2 from the vault of b",
        ),
    ],
)
def test_vaults_add_what_no_live_member_holds(live, slots, restore, reason):
    decision = decide_restore(live, [SAVED], (), slots)
    assert decision.restore == restore
    assert decision.reason.startswith(reason)


def test_parts_of_two_ways_to_cut_are_not_added_up():
    slots = [kept("b", 1, 45, dp=2, shard_size=2), kept("b", 3, 45)]
    assert decide_restore(members(0, 1), [], (), slots).restore == FreshState()


def sharded(**options):
    """Four ranks on two nodes, rank 0 and 1 on the head, each with a shard, at step 10."""
    drive = Drive(nodes=FOUR, zero_stage=3, **options)
    for node in ("head", "b"):
        drive.do(ev.VaultUp(node=node, address=f"{node}:1"))
    drive.ready()
    return drive.train(10)


def tell(drive, node, *slots, generation=None):
    number = drive.state.last_generation if generation is None else generation
    return drive.do(ev.VaultTold(node=node, generation=number, slots=slots))


def everything(vault, step, generation=1):
    return [kept(vault, rank, step, generation) for rank in range(4)]


def test_the_vaults_are_asked_with_the_fence_and_waited_for():
    drive = sharded()
    asked = of(cmd.AskVaults, drive.lose("worker-3"))
    assert asked == [cmd.AskVaults(generation=1, nodes=("b", "head"))]
    drive.park(10)
    tell(drive, "head", *everything("head", 10))
    assert drive.state.phase == "fencing"
    tell(drive, "b", generation=7)
    assert drive.state.phase == "fencing"
    tell(drive, "b")
    life = drive.state.current
    assert (life.generation, life.from_step, life.lost_steps) == (2, 10, 0)
    assert [one.vault for one in life.restore.slots] == ["head"]
    assert view_of(drive.controller).generations[-1].source == "live ranks, vault of head"


def test_without_vaults_nobody_is_asked_or_waited_for():
    drive = running(10, nodes=FOUR, zero_stage=3)
    drive.lose("worker-3")
    drive.park(10)
    assert of(cmd.AskVaults, drive.commands) == []
    assert drive.state.current.generation == 2


@pytest.mark.parametrize(
    "event",
    [
        ev.VaultLost(node="b"),
        ev.VaultUp(node="b", address="b:2"),
        ev.NodeSilent(node="b", silent_s=1.0),
        ev.NodeLost(node="b", cause="power"),
    ],
)
def test_one_that_is_gone_is_waited_for_no_more(event):
    drive = sharded()
    drive.lose("worker-1", "worker-3")
    drive.park(10)
    tell(drive, "head", *everything("head", 10))
    assert drive.state.phase == "fencing"
    drive.do(event)
    assert (drive.state.last_generation, drive.state.current.from_step) == (2, 10)


def test_one_that_does_not_answer_is_waited_for_once():
    drive = sharded()
    drive.lose("worker-3")
    drive.park(10)
    tell(drive, "head", *everything("head", 10))
    drive.now_s = drive.controller.next_deadline_s()
    drive.do(ev.Tick())
    assert drive.state.current.from_step == 10
    drive.train(12)
    drive.lose("worker-1")
    drive.park(12)
    tell(drive, "head", *everything("head", 10))
    assert drive.state.last_generation == 3
    tell(drive, "b", generation=1)
    drive.train(13)
    drive.lose(drive.members[-1])
    drive.park(13)
    tell(drive, "head")
    assert (drive.state.phase, drive.state.vaults.awaited) == ("fencing", {"b"})


def test_what_was_told_before_a_mesh_formed_is_old():
    drive = sharded()
    drive.lose("worker-3")
    drive.park(10)
    tell(drive, "head", *everything("head", 10))
    tell(drive, "b", *everything("b", 10))
    drive.train(11)
    tell(drive, "head", *everything("head", 10), generation=1)
    assert drive.state.vaults.told == {}
    drive.lose("worker-1")
    drive.park(11)
    tell(drive, "b")
    tell(drive, "head", generation=1)
    assert drive.state.phase == "fencing"
    tell(drive, "head", *everything("head", 10))
    assert isinstance(drive.state.current.restore, PeerState)
    assert drive.state.current.from_step == 10


def test_no_slot_of_an_abandoned_timeline_is_taken():
    drive = sharded()
    drive.save(5)
    drive.commit(5)
    drive.lose("worker-3")
    drive.park(10)
    for node in ("head", "b"):
        tell(drive, node)
    assert drive.state.current.from_step == 5
    drive.train(7)
    drive.lose("worker-1")
    drive.park(7)
    for node in ("head", "b"):
        tell(drive, node, *everything(node, 10))
    assert drive.state.current.from_step == 5


def test_a_step_without_a_record_is_none_to_start_from():
    drive = sharded()
    drive.lose(*drive.members)
    tell(drive, "head", *everything("head", 11), *everything("head", 9))
    tell(drive, "b")
    assert drive.state.phase == "waiting"
    drive.ready()
    assert (drive.state.last_generation, drive.state.current.from_step) == (2, 9)
    assert drive.state.current.restore.source is None


@pytest.mark.parametrize("late", [False, True])
def test_a_slot_that_cannot_be_read_is_done_without(late):
    """Seed 6506: who could not read it had left the mesh, and the next one read it again."""
    drive = sharded()
    drive.lose("worker-3")
    drive.park(10)
    tell(drive, "head", *everything("head", 10))
    tell(drive, "b", *everything("b", 10))
    (bad,) = drive.state.current.restore.slots
    drive.all(ev.WorkerFormed, form_s=0.01)
    failed = {"name": slot_label(bad), "error": "hash differs"}
    if late:
        drive.all(ev.GroupBroken, workers=drive.members[1:2], error="reset")
        drive.park(10, held_in=1, workers=drive.members[:1])
    drive.all(ev.RestoreFailed, workers=drive.members[:1], **failed)
    drive.park(10, held_in=1)
    tell(drive, "head", *everything("head", 10))
    tell(drive, "b", *everything("b", 10))
    (other,) = drive.state.current.restore.slots
    assert (other.vault, bad.vault) in {("b", "head"), ("head", "b")}
    assert drive.state.checkpoints.restore_failures == {}


def test_while_too_few_are_there_a_late_answer_still_counts():
    drive = sharded(min_workers=4)
    drive.do(ev.NodeDraining(node="b", cause="Ray drains it"))
    drive.park(10, drained=True)
    drive.save(10)
    drive.commit(10)
    assert drive.state.phase == "waiting"
    assert of(cmd.AskVaults, drive.commands) == [cmd.AskVaults(generation=1, nodes=("b", "head"))]
    tell(drive, "head", *everything("head", 10))
    assert drive.state.vaults.told.keys() == {"head"}
    asked = of(cmd.AskVaults, drive.do(ev.ControllerRestarted(down_s=1.0)))
    assert asked == [cmd.AskVaults(generation=1, nodes=("b", "head"))]


def test_a_node_that_leaves_is_let_go_once_what_its_vault_holds_is_taken():
    drive = sharded()
    drive.do(ev.NodeDraining(node="b", cause="Ray drains it"))
    drive.lose(*(w.name for w in drive.state.roster.on("b")))
    drive.park(10)
    tell(drive, "head", kept("head", 0, 10))
    tell(drive, "b", *everything("b", 10))
    assert {one.vault for one in drive.state.current.restore.slots} == {"b"}
    assert of(cmd.ReleaseNode, drive.commands) == []
    drive.train()
    assert of(cmd.ReleaseNode, drive.commands) == [cmd.ReleaseNode(node="b")]
    assert drive.state.vaults.addresses == {"head": "head:1"}


def test_a_holder_of_what_no_vault_has_is_taken_before_others():
    """A mesh of two of three, of which two hold a shard that a vault has too."""
    drive = Drive(nodes=(("head", 4),), max_dp=4, zero_stage=3, zero_group=2)
    drive.do(ev.VaultUp(node="head", address="head:1"))
    drive.ready()
    drive.train(10)
    drive.lose("worker-1")
    drive.park(10)
    first = [kept("head", 0, 10, shard_size=2)]
    tell(drive, "head", *first)
    life = drive.state.current
    assert {m.held.shard for m in life.members} == {0, 1}
    assert life.restore == PeerState(step=10, source=0)


def test_the_view_shows_the_vaults_by_node():
    nodes = view_of(sharded().controller).nodes
    assert {node.node: node.vault for node in nodes} == {"head": "head:1", "b": "b:1"}


def test_what_the_vaults_told_is_in_a_snapshot():
    drive = sharded()
    drive.lose("worker-3")
    tell(drive, "head", *everything("head", 10))
    snapshot = Snapshot(state=drive.state, tally=Tally())
    assert decode(json.loads(json.dumps(encode(snapshot)))) == snapshot


def test_the_first_rank_that_holds_a_part_is_the_one_that_puts_snapshots():
    layout = Layout(dp=4, tp=2)
    assert [Cut.of(layout, 2).is_first(layout, rank) for rank in range(8)] == [True] * 4 + [
        False
    ] * 4
    layout = Layout(dp=4)
    assert [Cut.of(layout, 1).is_first(layout, rank) for rank in range(4)] == [True] + [False] * 3


def test_a_slot_costs_the_same_among_thousands():
    assert growth(lambda num: lines_run(decide_restore, *slots_of(num)), 32, 256) < 1.5


@pytest.fixture
def huge():
    return slots_of(2048)


def test_one_part_in_a_hundred_thousand_slots_is_found(huge):
    decision = decide_restore(*huge)
    assert [(one.held.tensor, one.held.shard) for one in decision.restore.slots] == [(0, 0)]


def pause(drive, worker, reason):
    paused = ev.SnapshotsPaused(
        worker=worker, generation=drive.state.last_generation, reason=reason
    )
    return [command.text for command in of(cmd.Announce, drive.do(paused))]


def test_why_there_are_no_snapshots_is_announced_once_a_generation():
    drive = sharded()
    (said,) = pause(drive, "worker-1", "there is no room")
    assert "worker-1 says that there is no room" in said
    assert pause(drive, "worker-2", "there is no room") == []
    assert len(pause(drive, "worker-2", "it is gone")) == 1
    assert len(pause(drive, "worker-2", "it is gone again")) == 1
    assert pause(drive, "worker-0", "something else") == []
    drive.lose("worker-3")
    for node in ("b", "head"):
        tell(drive, node, *everything(node, 10))
    drive.park(10)
    drive.ready()
    drive.train()
    assert drive.state.last_generation == 2
    assert len(pause(drive, "worker-1", "there is no room")) == 1


def test_one_that_dies_after_it_drained_and_before_the_others_did_is_looked_for_in_vaults():
    """The next mesh was to start from its part."""
    drive = sharded()
    lower = Amendment(step=11, key="train.lr", old=3e-3, new=1e-3)
    drive.do(ev.Amended(changes=(lower,)))
    drive.all(
        ev.WorkerParked, workers=["worker-3"], at_step=10, drained=True, held_in=1, records=()
    )
    asked = of(cmd.AskVaults, drive.lose("worker-3"))
    assert asked == [cmd.AskVaults(generation=1, nodes=("b", "head"))]
    assert drive.state.fault is not None
