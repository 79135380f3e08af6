"""State in parts: tp groups and ZeRO shards, whose next mesh, and where it gets its state from."""

import pytest
from control_drive import Drive, of, running
from control_values import held, records
from counted import growth, lines_run
from sized import a_lost_part_among

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState, FreshState, Member, PeerState
from remesh.orchestrator.control.words.recovery import decide_restore
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.layout import Layout

SAVED = CheckpointState(step=40, name="step-40")
FOUR = (("head", 2), ("b", 2))


def members(*at_steps, shard_size=1, ranks=None, **degrees):
    """One a step; each held the part of that rank in a mesh of that layout."""
    layout = Layout(**degrees)
    return [
        Member(
            worker=f"w{rank}",
            node="n",
            rank=rank,
            at_step=at_step,
            held=held(ranks[rank] if ranks else rank, layout=layout, shard_size=shard_size),
        )
        for rank, at_step in enumerate(at_steps)
    ]


def test_a_part_follows_from_the_place_in_the_mesh():
    layout = Layout(dp=4, tp=2)
    parts = [held(rank, layout=layout, shard_size=2) for rank in range(8)]
    assert [(one.tensor, one.shard) for one in parts] == [(0, 0), (1, 0), (0, 1), (1, 1)] * 2
    assert {held(rank, layout=layout).tensor for rank in range(8)} == {0, 1}
    assert held(7, dp=9) == held() == Held()


@pytest.mark.parametrize(
    ("held", "restore", "reason"),
    [
        (members(45, 45, dp=1, tp=2), 45, "with the state of the live ranks"),
        (members(45, 45, None, dp=2, tp=2, ranks=[0, 3, 1]), 45, "with the state of the live rank"),
        (
            members(45, 45, dp=2, tp=2, ranks=[0, 2]),
            SAVED,
            "with checkpoint step-40, as no live rank holds tensor part 1 of 2 at step 45",
        ),
        (
            members(45, 45, 45, dp=4, shard_size=4, ranks=[0, 1, 3]),
            SAVED,
            "with checkpoint step-40, as no live rank holds shard 2 of 4 at step 45",
        ),
        (
            members(45, 45, 45, dp=2, tp=2, shard_size=2, ranks=[0, 1, 2]),
            SAVED,
            "with checkpoint step-40, as no live rank holds shard 1 of 2 of tensor part 1 of 2",
        ),
        (
            members(45, 46, 45, 45, dp=4, shard_size=2),
            45,
            "with the state of the live ranks, as no live rank holds shard 0 of 2 at step 46",
        ),
        (
            members(44, 45, dp=2, shard_size=2),
            SAVED,
            "with checkpoint step-40, as no live rank holds shard 0 of 2 at step 45",
        ),
        (members(39, None, dp=2, shard_size=2), SAVED, "with checkpoint step-40"),
        (
            members(45, 45, dp=2, pp=2, ranks=[0, 2]),
            SAVED,
            "with checkpoint step-40, as no live rank holds stage 1 of 2 at step 45",
        ),
        (members(45, 45, dp=2, pp=2, ranks=[0, 3]), 45, "with the state of the live ranks"),
        (
            members(45, 45, dp=4, ep=2, ranks=[1, 3]),
            SAVED,
            "with checkpoint step-40, as no live rank holds expert part 0 of 2 at step 45",
        ),
        (
            members(45, 45, 45, dp=4, ep=2, shard_size=4, ranks=[0, 1, 3]),
            SAVED,
            "with checkpoint step-40, as no live rank holds shard 2 of 4 at step 45",
        ),
        (members(45, 45, dp=4, ep=2, ranks=[2, 1]), 45, "with the state of the live ranks"),
    ],
)
def test_members_have_to_hold_every_part_at_one_step(held, restore, reason):
    decision = decide_restore(held, [SAVED], ())
    source = next((m.rank for m in held if m.at_step == restore), None)
    expected = restore if restore is SAVED else PeerState(step=restore, source=source)
    assert decision.restore == expected
    assert decision.reason.startswith(reason)


def test_parts_of_two_ways_to_cut_are_not_added_up():
    mixed = members(45, None, dp=2, shard_size=2) + members(45, dp=4, shard_size=4, ranks=[3])
    assert decide_restore(mixed, [], ()).restore == FreshState()
    assert "as no live rank holds shard 0 of 4" in decide_restore(mixed, [], ()).reason


def test_a_mesh_is_made_of_whole_groups():
    drive = Drive(nodes=(("head", 3), ("b", 3)), max_dp=4, tp=2)
    drive.ready()
    (form,) = of(cmd.Form, drive.commands)
    assert form.rung.layout == Layout(dp=2, tp=2)
    assert [member.node for member in form.members] == ["head", "head", "b", "b"]


def test_workers_are_started_where_they_complete_a_group():
    nodes = tuple((f"node-{number}", 4) for number in range(4))
    drive = Drive(nodes=nodes, max_dp=1, tp=4, spares=1)
    started = [command.node for command in of(cmd.StartWorker, drive.commands)]
    assert started == ["node-0"] * 4 + ["node-1"]


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"tp": 4}, "have 3, need 4 in tp groups of 4 on one node each"),
        ({"tp": 2, "min_workers": 3}, "have 3, need 4 in tp groups of 2 on one node each"),
        (
            {"tp": 2, "zero_stage": 1, "zero_group": 2},
            "have 3, need 4 in tp groups of 2 on one node each and ZeRO groups of 2 replicas",
        ),
        ({"tp": 4, "allow_cross_node_tp": True}, "have 3, need 4 in tp groups of 4, for"),
    ],
)
def test_too_few_workers_for_a_group_are_waited_for_with_the_numbers(options, needed):
    drive = Drive(nodes=(("head", 2), ("b", 1)), max_dp=2, wait_limit_s=60, **options)
    drive.ready()
    assert drive.state.phase == "waiting"
    drive.now_s = drive.controller.next_deadline_s()
    while drive.state.phase == "waiting":
        drive.now_s = drive.controller.next_deadline_s()
        drive.do(ev.Tick(), after_s=0.0)
    assert drive.state.phase == "failed"
    assert f"waiting for workers: {needed}" in drive.state.reason


def test_a_group_that_straddles_nodes_is_formed_only_where_it_may():
    one_each = (("head", 1), ("b", 1))
    assert running(5, nodes=one_each, max_dp=1, tp=2, allow_cross_node_tp=True)
    drive = Drive(nodes=one_each, max_dp=1, tp=2)
    drive.ready()
    assert drive.state.phase == "waiting"


def test_groups_that_lost_nobody_carry_the_state_on():
    drive = running(10, nodes=(("head", 3), ("b", 2)), max_dp=2, tp=2, spares=1)
    drive.ready()
    lost = next(m.worker for m in drive.state.current.members if m.node == "head")
    drive.lose(lost)
    drive.park(10)
    life = drive.state.current
    assert (life.layout, life.restore) == (Layout(dp=2, tp=2), PeerState(step=10, source=0))
    assert "from step 10 with the state of the live ranks" in life.reason
    assert sorted(m.at_step or 0 for m in life.members) == [0, 10, 10, 10]


def test_of_replicas_that_share_their_state_one_of_each_shard_is_kept():
    """Of four, the second dies: of those left the first and the third hold the same shard."""
    drive = running(10, nodes=(("head", 4),), max_dp=4, zero_stage=3, zero_group=2)
    drive.lose("worker-1")
    commands = drive.park(10)
    life = drive.state.current
    spare = "1 worker stays spare: a mesh has whole groups of 2 replicas, 2 workers at a time"
    assert cmd.Announce(text=spare) in commands
    assert {m.held.shard for m in life.members} == {0, 1}
    assert (life.layout, life.rung.shards, life.from_step) == (Layout(dp=2), 2, 10)


def test_a_shard_that_is_lost_leads_back_to_the_checkpoint_and_the_steps_are_counted():
    drive = running(20, nodes=FOUR, zero_stage=2)
    drive.save(20)
    drive.commit(20)
    drive.steps(26)
    drive.lose("worker-2")
    drive.park(26)
    life = drive.state.current
    assert (life.rung.shards, life.from_step, life.lost_steps) == (3, 20, 6)
    shard = f"no live rank holds shard {life.layout.dp - 2} of 4 at step 26"
    assert life.reason.startswith(f"from step 20 with checkpoint step-20.gen-1, as {shard}: worker")


def test_a_member_fenced_before_it_restored_holds_the_part_that_it_had():
    drive = running(10, nodes=FOUR, max_dp=3, spares=1, zero_stage=3)
    drive.do(ev.NodeJoined(node="c", slots=1))
    first = drive.state.current
    ranks = {m.worker: m.rank for m in first.members}
    drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
    drive.park(10, held_in=1)
    assert drive.state.current.restore == PeerState(step=10, source=0)
    drive.all(ev.WorkerFormed, form_s=0.01)
    drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
    half = drive.members[1:]
    drive.park(10, workers=drive.members[:1], held_in=2)
    drive.park(10, workers=half, held_in=1)
    parts = {m.worker: m.held for m in drive.state.current.members}
    assert all(parts[name] == held(ranks[name], layout=first.layout, shard_size=3) for name in half)
    assert drive.state.current.restore == PeerState(step=10, source=0)


def test_a_part_of_a_generation_that_the_worker_was_not_in_counts_as_none():
    drive = running(10, nodes=FOUR, tp=2, max_dp=2)
    drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
    drive.park(10, held_in=7)
    assert {m.at_step for m in drive.state.current.members} == {None}


@pytest.mark.parametrize(
    ("options", "save"),
    [({"zero_stage": 3}, True), ({"zero_stage": 3, "zero_group": 2}, False), ({"tp": 2}, False)],
)
def test_a_node_that_leaves_is_waited_for_to_save_where_it_holds_an_only_copy(options, save):
    drive = running(10, nodes=FOUR, max_dp=4 // options.get("tp", 1), **options)
    (drain,) = of(cmd.Drain, drive.do(ev.NodeDraining(node="b", cause="Ray drains it")))
    assert drain.save == save
    drive.park(11, drained=True, records=records(11, 11, 1.0))
    if save:
        drive.save(11)
        drive.commit(11)
    life = drive.state.current
    assert (life.generation, life.from_step, life.lost_steps) == (2, 11, 0)
    assert isinstance(life.restore, CheckpointState if save else PeerState)


def test_a_part_costs_the_same_among_thousands_of_members():
    assert growth(lambda num: lines_run(a_lost_part_among(num)[1]), 32, 256) < 1.5


@pytest.fixture
def huge():
    return a_lost_part_among(2048)


def test_parts_on_sixteen_thousand_members_are_found(huge):
    drive, lose_one = huge
    lose_one()
    life = drive.state.current
    assert life.layout == Layout(dp=2032, tp=8)
    assert life.restore == PeerState(step=10, source=0)
