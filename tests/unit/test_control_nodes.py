"""Nodes that join, leave, are more than wanted, or come back: what the run makes of them."""

import pytest
from control_drive import Drive, of, running
from control_values import held, slot
from ladders import mixed

from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.journal import encode, replay
from remesh.orchestrator.control.memory.membership import NodeState
from remesh.orchestrator.control.memory.quarantine import Quarantine, cool_down_s
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev

THREE = (("head", 1), ("b", 1), ("c", 1))


def drain(drive, node, **values):
    return drive.do(ev.NodeDraining(node=node, cause="Ray drains it", **values))


def leave(drive, at_step):
    """All members have stopped at this step boundary."""
    return drive.park(at_step, drained=True)


def forms(commands):
    return of(cmd.Form, commands)


def nodes_of(form):
    return [member.node for member in form.members]


def states(drive):
    return {node.name: node.state for node in drive.state.roster.nodes.values()}


def test_a_draining_node_is_done_without_at_a_step_boundary():
    drive = running(5, nodes=THREE, max_dp=3)
    [left] = of(cmd.Drain, drain(drive, "c", deadline_s=30.0))
    assert not left.save
    [form] = forms(leave(drive, 6))
    assert nodes_of(form) == ["head", "b"]
    assert form.from_step == 6
    [end] = of(cmd.EndWorker, drive.commands)
    assert end.node == "c"
    assert not of(cmd.ReleaseNode, drive.commands)
    [release] = of(cmd.ReleaseNode, drive.lose(end.worker))
    assert release.node == "c"
    assert drive.state.budget.total == 0
    assert drive.state.generations[-1].lost_steps == 0
    assert states(drive)["c"] is NodeState.DRAINED


def test_a_drained_node_gets_no_further_workers_and_may_die_unnoticed():
    drive = running(5, nodes=THREE, max_dp=3)
    drain(drive, "c")
    leave(drive, 6)
    drive.lose("worker-2")
    drive.train(7)
    before = len(drive.commands)
    drive.do(ev.NodeLost(node="c", cause="Ray lost it"))
    assert drive.state.phase == "running"
    assert not of(cmd.StartWorker, drive.commands[before:])
    assert not drive.state.quarantine.hosts


def test_a_node_that_is_drained_twice_leaves_once():
    drive = running(5, nodes=THREE, max_dp=3)
    drain(drive, "c")
    assert drain(drive, "c", deadline_s=9.0) == []
    assert drive.state.roster.nodes["c"].until_s == 9.0


def test_spares_on_a_draining_node_are_ended_without_disturbing_the_mesh():
    drive = running(5, nodes=(("head", 2), ("b", 2)), max_dp=2, spares=2)
    idle = [w for w in drive.state.roster.workers.values() if w.state == "idle"]
    drive.lose(*(w.name for w in idle if w.node == "head"))
    members = {m.node for m in drive.state.current.members}
    assert members == {"head", "b"}
    drain(drive, "b")
    leave(drive, 6)
    assert all(end.node == "b" for end in of(cmd.EndWorker, drive.commands))
    assert drive.state.budget.total == 0


def test_a_node_that_dies_before_its_drain_is_over_is_no_failure():
    drive = running(5, nodes=THREE, max_dp=3)
    drain(drive, "c")
    drive.do(ev.NodeLost(node="c", cause="preempted"))
    drive.park(6)
    assert drive.state.budget.total == 0
    assert nodes_of(drive.state.current) == ["head", "b"]
    assert not drive.state.quarantine.hosts


def test_the_state_is_saved_when_nothing_else_holds_it():
    """The members all leave; who stays is warm, but holds nothing."""
    drive = Drive(nodes=(("b", 2),), max_dp=2)
    drive.ready()
    drive.train(5)
    drive.do(ev.NodeJoined(node="c", slots=2))
    [left] = of(cmd.Drain, drain(drive, "b"))
    assert left.save
    drive.ready()
    assert not forms(leave(drive, 6))
    drive.save(6)
    drive.commit(6)
    [_, form] = forms(drive.commands)
    assert nodes_of(form) == ["c", "c"]
    assert form.from_step == 6


def test_a_node_is_kept_while_it_alone_holds_the_state_after_a_fault():
    drive = running(5, nodes=(("head", 1), ("b", 1)), max_dp=2, spares=0)
    drain(drive, "b")
    drive.lose("worker-0")
    drive.park(6, workers=["worker-1"], drained=False)
    drive.ready()
    form = forms(drive.commands)[-1]
    assert form.from_step == 6
    assert "worker-1" in [member.worker for member in form.members]
    [left] = of(cmd.Drain, drive.commands[-20:])[-1:]
    assert not left.save or "worker-1" in left.workers


def test_below_the_minimum_the_job_waits_with_have_and_need_and_then_fails():
    nodes = (*THREE, ("d", 1))
    drive = running(5, nodes=nodes, max_dp=4, min_nodes=3, max_nodes=6, wait_limit_s=60)
    drain(drive, "d")
    assert nodes_of(forms(leave(drive, 6))[0]) == ["head", "b", "c"]
    drive.train(7)
    [left] = of(cmd.Drain, drain(drive, "c"))
    assert left.save
    leave(drive, 8)
    drive.save(8)
    drive.commit(8)
    assert drive.state.phase == "waiting"
    assert view_of(drive.controller).reason == "waiting for nodes: have 2, need 3"
    assert drive.state.deadlines.phase_s == pytest.approx(drive.now_s + 60, abs=0.1)
    [end] = of(cmd.End, drive.do(ev.Tick(), after_s=60))
    assert end.status == "failed"
    assert end.reason == "waiting for nodes: have 2, need 3, for 60 s; saved at step 8"


def test_growing_by_two_nodes_makes_one_generation():
    drive = running(5, nodes=(*THREE, ("d", 1)), max_dp=6, min_nodes=3, max_nodes=6)
    drive.do(ev.NodeJoined(node="e", slots=1), ev.NodeJoined(node="f", slots=1))
    drive.ready()
    [form] = forms(leave(drive, 6))
    assert form.generation == 2
    assert len(form.members) == 6


def test_more_nodes_than_the_maximum_are_spares_and_replace_the_lost():
    drive = running(5, nodes=(*THREE, ("d", 1), ("e", 1)), max_dp=8, max_nodes=4)
    assert list(states(drive).values()).count(NodeState.SPARE) == 1
    assert len(drive.members) == 4
    drive.do(ev.NodeLost(node="d", cause="SIGKILL"))
    drive.park(6)
    drive.do(ev.NodeJoined(node="d2", host="d", slots=1))
    drive.train(7)
    drive.ready()
    [form] = forms(leave(drive, 8))
    assert nodes_of(form) == ["head", "b", "c", "e"]
    assert states(drive)["d2"] is NodeState.QUARANTINED
    assert not drive.state.fault


def test_the_maximum_counts_nodes_and_not_workers():
    drive = running(5, nodes=(("head", 4), ("b", 4), ("c", 4)), max_dp=12, max_nodes=2)
    assert len(drive.members) == 8
    assert not of(cmd.EndWorker, drive.commands)
    drive.do(ev.ScaleRequested(nodes=3))
    assert drive.state.wanted_nodes == 2
    drive.do(ev.ScaleRequested(nodes=1))
    [form] = forms(leave(drive, 6))
    assert nodes_of(form) == ["head"] * 4


def test_scaling_down_lets_the_newest_nodes_go_and_up_takes_them_back():
    drive = running(5, nodes=THREE, max_dp=3, max_nodes=3)
    drive.do(ev.ScaleRequested(nodes=1))
    assert nodes_of(forms(leave(drive, 6))[0]) == ["head"]
    drive.lose("worker-1", "worker-2")
    assert {release.node for release in of(cmd.ReleaseNode, drive.commands)} == {"b", "c"}
    drive.train(7)
    before = len(drive.commands)
    drive.do(ev.ScaleRequested(nodes=2))
    [start] = of(cmd.StartWorker, drive.commands[before:])
    assert states(drive) == {
        "head": NodeState.USED,
        start.node: NodeState.USED,
        ({"b", "c"} - {start.node}).pop(): NodeState.SPARE,
    }
    drive.ready()
    assert len(forms(leave(drive, 8))[0].members) == 2


def test_the_head_goes_last():
    drive = Drive(nodes=(("b", 1), ("head", 1), ("c", 1)), max_dp=3)
    drive.ready()
    drive.train(5)
    drive.do(ev.ScaleRequested(nodes=1))
    assert nodes_of(forms(leave(drive, 6))[0]) == ["head"]


def test_a_head_that_is_taken_away_ends_the_run_saved_and_preempted():
    drive = running(5, nodes=THREE, max_dp=3)
    [left] = of(cmd.Drain, drain(drive, "head", deadline_s=30.0))
    assert left.save
    leave(drive, 6)
    drive.save(6)
    drive.commit(6)
    [end] = of(cmd.End, drive.commands)
    assert end.status == "preempted"
    assert "the head node head is leaving: Ray drains it; saved at step 6" in end.reason


def broken_pair(*joining, **options):
    """Pairs of workers that hold the same; of the one that stays one dies, as the other leaves."""
    drive = running(5, nodes=(("head", 2), ("b", 2)), **{"max_dp": 2, "cp": 2, **options})
    drain(drive, "b")
    for node in joining:
        drive.do(ev.NodeJoined(node=node, slots=2))
    drive.ready()
    staying = [one.worker for one in drive.state.current.members if one.node == "head"]
    drive.lose(staying[0])
    return drive


PAIRS_OR_ONE = mixed({"max_dp": 2, "cp": 2}, {"max_dp": 1})


@pytest.mark.parametrize("options", [{}, {"ladder": PAIRS_OR_ONE}])
def test_what_those_who_stay_cannot_bring_along_comes_from_a_node_that_leaves(options):
    """One that holds all of the state has nobody on its node to make up a pair with."""
    drive = broken_pair("c", **options)
    [form] = forms(drive.park(6))
    assert (form.from_step, nodes_of(form)) == (6, ["b", "b", "c", "c"])
    drive.train()
    [form] = forms(drive.park(7, drained=True))
    assert (form.from_step, nodes_of(form)) == (7, ["c", "c"])


def test_what_nodes_that_leave_hold_counts_together_with_what_vaults_have():
    """The part of the one that died is in the vault of its node, and the rest lives on."""
    drive = running(5, nodes=(("head", 2), ("b", 2)), zero_stage=3)
    drive.do(ev.VaultUp(node="head", address="10.0.0.1:1"))
    drain(drive, "b")
    lost = next(one for one in drive.state.current.members if one.node == "head")
    drive.lose(lost.worker)
    drive.park(5)
    part = slot("head", held(lost.rank, dp=4, shard_size=4), 5)
    [form] = forms(drive.do(ev.VaultTold(node="head", generation=1, slots=(part,))))
    assert (form.from_step, form.restore.slots) == (5, (part,))
    assert "b" in nodes_of(form)


def test_nodes_that_leave_wait_for_a_mesh_that_has_their_state_without_them():
    drive = broken_pair()
    drive.park(6)
    assert drive.state.phase == "waiting"
    assert not of(cmd.EndWorker, drive.commands)
    drive.ready()
    form = forms(drive.commands)[-1]
    assert (form.from_step, nodes_of(form)) == (6, ["head", "head"])
    assert {end.node for end in of(cmd.EndWorker, drive.commands)} == {"b"}


def test_a_node_leaves_a_run_that_waits_if_another_has_the_state_where_a_mesh_can_take_it():
    drive = broken_pair(cp=1, max_dp=4, min_workers=3)
    drive.park(6)
    assert drive.state.phase == "waiting"
    assert {end.node for end in of(cmd.EndWorker, drive.commands)} == {"b"}


@pytest.mark.parametrize(
    ("sign", "why"),
    [
        (ev.WorkerLost(worker="worker-0", cause="killed"), "was lost: killed"),
        (ev.WorkerFrozen(worker="worker-0", silent_s=0.6), "gave no sign of life for 0.6 s"),
    ],
)
def test_the_last_holder_that_is_lost_while_a_run_waits_is_said_and_counted(sign, why):
    drive = running(5, nodes=(("head", 2), ("b", 1)), max_dp=2, min_workers=2, spares=1)
    drain(drive, "b")
    drive.lose("worker-2")
    assert not forms(leave(drive, 6))
    drive.do(sign)
    drive.lose("worker-0", "worker-1")
    for _ in range(2):  # one after the other has a place on the head
        drive.ready()
    life = drive.state.current
    assert (life.from_step, life.lost_steps) == (0, 6)
    assert f"worker-0 on head {why}" in life.reason
    assert life.fault.num_losses == drive.state.budget.total == 1


@pytest.mark.parametrize("moment", ["forming", "restoring", "draining"])
def test_a_drain_that_comes_while_there_are_no_steps_is_done_soon_after(moment):
    drive = Drive(nodes=THREE, max_dp=3)
    drive.ready()
    if moment == "restoring":
        drive.all(ev.WorkerFormed, form_s=0.01)
    if moment == "draining":
        drive.train(5)
        drive.do(ev.NodeDraining(node="b", cause="first"))
    drain(drive, "c")
    drive.train()
    assert of(cmd.Drain, drive.commands)
    leave(drive, drive.state.step + 1)
    assert "c" not in nodes_of(drive.state.current)
    assert drive.state.budget.total == 0


def test_a_host_that_was_lost_is_refused_until_its_cool_down_ends():
    drive = running(5, nodes=(("head", 1), ("b", 1)), max_dp=2, min_nodes=2, patience_s=0.5)
    for name, losses in (("b", 1), ("b2", 2)):
        drive.do(ev.NodeLost(node=name, cause="SIGKILL"))
        if losses == 1:
            drive.park(6)
        after = f"b{losses + 1}"
        drive.do(ev.NodeJoined(node=after, host="b", slots=1))
        assert states(drive)[after] is NodeState.QUARANTINED
        assert drive.state.phase == "waiting"
        drive.do(ev.NodeJoined(node=after, host="b", slots=1))
        reason = view_of(drive.controller).reason
        assert reason.startswith("waiting for nodes: have 1, need 2")
        cool_s = cool_down_s(losses, 0.5)
        assert drive.controller.next_deadline_s() == pytest.approx(drive.now_s + cool_s, abs=0.1)
        starts = of(cmd.StartWorker, drive.do(ev.Tick(), after_s=cool_s))
        assert [start.node for start in starts] == [after]


def test_the_reason_to_wait_names_those_in_quarantine():
    drive = running(5, nodes=(("head", 1), ("b", 1)), max_dp=2, min_nodes=2)
    drive.do(ev.NodeLost(node="b", cause="SIGKILL"))
    drive.do(ev.NodeJoined(node="b2", host="b", slots=1))
    drive.park(6)
    assert view_of(drive.controller).reason == (
        "waiting for nodes: have 1, need 2; 1 in quarantine, as the host was lost before"
    )


def test_cool_downs_double_up_to_an_hour_and_are_forgiven():
    assert [cool_down_s(n, 0.5) for n in (1, 2, 3, 50)] == [10.0, 20.0, 40.0, 3600.0]
    quarantine = Quarantine()
    quarantine.note_loss("b", 100.0, 0.5)
    quarantine.note_loss("b", 200.0, 0.5)
    assert quarantine.until_s("b", 0.5) == 220.0
    assert quarantine.until_s("c", 0.5) == 0.0
    quarantine.note_loss("b", 8000.0, 0.5)
    assert quarantine.count("b") == 1


def test_a_journal_with_joins_and_drains_replays_to_the_same_state():
    events = [
        ev.NodeJoined(node="head", slots=1, head=True),
        ev.NodeJoined(node="b", slots=1, host="10.0.0.2", domain="rack-1"),
        ev.RunStarted(),
        ev.NodeDraining(node="b", cause="Ray drains it", deadline_s=30.0),
        ev.ScaleRequested(nodes=1),
    ]
    lines = [encode(event, 1.0 + index) for index, event in enumerate(events)]
    first, second = (replay(lines, running().controller.options) for _ in range(2))
    assert first.state == second.state
    assert first.state.roster.nodes["b"].domain == "rack-1"
    assert first.state.wanted_nodes == 1


def test_ranks_follow_domain_node_and_device_whatever_the_order_of_arrival():
    drive = Drive(nodes=(), max_dp=6)
    places = {"b": "rack-2", "head": "rack-1", "c": "rack-1"}
    for name, domain in places.items():
        joined = ev.NodeJoined(node=name, slots=2, domain=domain, head=name == "head")
        drive.do(joined)
    given = {"b": [1, 0], "head": [3, 2], "c": [0, 1]}
    for worker in list(drive.state.roster.workers.values()):
        device = given[worker.node].pop()
        drive.do(ev.WorkerReady(worker=worker.name, node=worker.node, pid=1, device=device))
    [form] = forms(drive.commands)
    assert nodes_of(form) == ["head", "head", "c", "c", "b", "b"]
    devices = [drive.state.roster.workers[m.worker].device for m in form.members]
    assert devices == [2, 3, 0, 1, 0, 1]
    assert [m.local_rank for m in form.members] == [0, 1, 0, 1, 0, 1]


def test_a_second_worker_on_one_device_is_refused():
    drive = Drive(nodes=(("head", 2),), max_dp=2)
    for worker in ("worker-0", "worker-1"):
        drive.do(ev.WorkerReady(worker=worker, node="head", pid=1, device=0))
    [end] = of(cmd.EndWorker, drive.commands)
    assert end.worker == "worker-1"
    assert end.reason == "was given device 0, which worker-0 has"


def test_one_that_ends_before_it_was_ready_has_no_device_that_anybody_knows_of():
    """Seed 11076: its place was free, it had another device, and who had this one was killed."""
    drive = Drive(nodes=(("head", 2),), max_dp=2)
    drive.do(ev.WorkerFrozen(worker="worker-0", silent_s=3.0))
    drive.do(ev.WorkerReady(worker="worker-1", node="head", pid=1, device=0))
    assert [end.worker for end in of(cmd.EndWorker, drive.commands)] == ["worker-0"]


def test_a_replacement_takes_the_place_of_the_worker_that_it_replaces():
    drive = running(5, nodes=(("head", 2), ("b", 2)), max_dp=4)
    drive.lose(drive.members[1])
    drive.park(6)
    drive.train(7)
    drive.ready()
    leave(drive, 8)
    assert nodes_of(drive.state.current) == ["head", "head", "b", "b"]
    assert [w.device for w in view_of(drive.controller).workers if w.node == "head"] == [0, 1]


@pytest.mark.parametrize("late", ["head", "b"])
def test_a_mesh_that_takes_several_nodes_gets_them_though_one_has_room_for_it(late):
    """One that came when all workers were starting elsewhere stayed empty, and all waited."""
    first = "b" if late == "head" else "head"
    drive = Drive(nodes=((first, 4),), max_dp=4, min_nodes=2)
    drive.do(ev.NodeJoined(node=late, slots=4, head=late == "head"))
    drive.ready()
    assert {worker.node for worker in drive.state.roster.workers.values()} == {first, late}
    assert drive.state.phase == "forming"
    assert len(drive.state.roster.on(late)) == 1
