"""Deaths, late and doubled words, false alarms, and whose state and files still count."""

import pytest
from control_drive import of, running
from control_values import records

from remesh.orchestrator.control.handlers.presence import is_held_up
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState, PeerState


@pytest.mark.parametrize("victims", [("worker-0",), ("worker-0", "worker-3"), ("worker-0", "b")])
def test_rank_0_or_its_node_or_two_at_once_may_die(victims):
    drive = running(10)
    for victim in victims:
        if victim == "b":
            drive.do(ev.NodeLost(node="b", cause="unplugged"))
        else:
            drive.lose(victim)
    drive.park(10)
    form = of(cmd.Form, drive.commands)[-1]
    assert form.generation == 2
    assert form.from_step == 10
    assert not {member.worker for member in form.members} & set(victims)


def test_a_save_that_a_dead_writer_left_unfinished_is_not_committed_the_next_one_is():
    drive = running(20)
    drive.save(20, workers=["worker-0", "worker-2", "worker-3"])
    drive.lose("worker-1")
    drive.park(20)
    drive.train(40)
    assert of(cmd.Commit, drive.commands) == []
    (commit,) = of(cmd.Commit, drive.save(40))
    assert (commit.generation, commit.step, len(commit.files)) == (2, 40, 3)


def test_a_silent_node_is_no_reason_to_leave_a_mesh_that_trains():
    drive = running(10)
    for _ in range(5):
        assert drive.do(ev.NodeSilent(node="b", silent_s=20.0), after_s=20.0) == []
    drive.do(ev.NodeLost(node="b", cause="silent for 90 s"))
    drive.park(10)
    assert drive.state.last_generation == 2
    drive.train(20)
    assert drive.do(ev.NodeSilent(node="head", silent_s=20.0), after_s=20.0) == []
    assert drive.state.last_generation == 2


def test_a_refused_connection_is_no_reason_to_leave_a_mesh_that_trains():
    drive = running(10)
    assert drive.do(ev.NodeRefused(node="b", broken_s=0.0)) == []
    drive.steps(12)
    assert drive.do(ev.NodeRefused(node="b", broken_s=0.0)) == []
    assert drive.state.last_generation == 1


def test_who_is_refused_is_waited_for_no_longer_once_its_mesh_is_left():
    drive = running(10)
    assert not is_held_up(drive.state, "b")
    drive.all(ev.GroupBroken, workers=["worker-0"], error="reset")
    drive.park(10, workers=["worker-0", "worker-2"])
    assert not is_held_up(drive.state, "nobody")
    assert is_held_up(drive.state, "b")
    assert drive.do(ev.NodeRefused(node="nobody", broken_s=drive.now_s)) == []
    [form] = of(cmd.Form, drive.do(ev.NodeRefused(node="b", broken_s=drive.now_s)))
    assert {member.node for member in form.members} == {"head"}
    assert not is_held_up(drive.state, "b")
    assert drive.do(ev.NodeRefused(node="b", broken_s=drive.now_s)) == []
    assert drive.do(ev.NodeLost(node="b", cause="no sign of life")) == []
    assert drive.state.budget.total == 1


def test_a_silent_node_is_given_up_early_only_where_all_others_were_heard():
    drive = running(10)
    drive.all(ev.GroupBroken, workers=["worker-0"], error="reset")
    drive.park(10, workers=["worker-0"])
    drive.do(ev.NodeSilent(node="b", silent_s=0.5))
    assert "b" in drive.state.roster.nodes
    drive.park(10, workers=["worker-2"])
    drive.do(ev.NodeSilent(node="b", silent_s=0.6))
    assert "b" not in drive.state.roster.nodes


def test_the_only_node_of_a_run_has_all_its_time():
    """On a machine with too much to do it took all that the run had, and it began anew."""
    drive = running(10, nodes=(("head", 4),))
    drive.all(ev.GroupBroken, workers=["worker-0"], error="reset")
    drive.do(ev.NodeSilent(node="head", silent_s=0.6))
    assert drive.state.phase == "fencing"
    assert len(drive.state.roster.workers) == 4


def test_late_and_doubled_words_of_older_generations_change_nothing():
    drive = running(10)
    drive.lose("worker-3")
    drive.park(10)
    drive.train(12)
    late = {"workers": ["worker-0", "worker-1", "worker-3"], "generation": 1}
    commands = drive.all(ev.GroupBroken, error="late", **late)
    commands += drive.park(10, drained=False, **late)
    commands += drive.all(ev.WorkerErred, error="late", user_error=False, **late)
    commands += drive.all(ev.RestoreFailed, name="x", error="late", **late)
    commands += drive.lose("worker-3")
    assert commands == []
    assert drive.state.phase == "running"
    drive.all(ev.GroupBroken, error="real", workers=["worker-0"])
    drive.all(ev.GroupBroken, error="real", workers=["worker-0", "worker-1"])
    drive.park(12)
    assert drive.state.last_generation == 3


def test_files_of_an_abandoned_timeline_are_not_committed():
    drive = running(20)
    drive.save(20)
    drive.commit(20)
    drive.steps(40)
    drive.lose(*drive.members)
    drive.ready()
    assert of(cmd.Form, drive.commands)[-1].restore == CheckpointState(
        step=20, name="step-20.gen-1"
    )
    dead = [f"worker-{number}" for number in range(4)]
    assert drive.save(40, generation=1, workers=dead) == []
    drive.train(40)
    (commit,) = of(cmd.Commit, drive.save(40))
    assert commit.generation == 2


def test_a_writer_that_dies_after_it_parked_is_not_waited_for():
    drive = running(80)
    drive.park(80, drained=True)
    drive.save(80, workers=["worker-0", "worker-1", "worker-2"])
    (held,) = of(cmd.SaveHeld, drive.lose("worker-3"))
    drive.save(80, workers=held.workers)
    drive.commit(80)
    assert drive.state.phase == "finished"


def test_the_loss_of_one_that_has_parked_and_saved_does_not_matter():
    drive = running(80)
    drive.park(80, drained=True)
    drive.save(80, workers=["worker-0", "worker-1", "worker-3"])
    assert of(cmd.Form, drive.lose("worker-3")) == []
    assert of(cmd.Commit, drive.save(80, workers=["worker-2"]))


def test_a_checkpoint_waits_for_the_records_of_its_steps():
    drive = running(18)
    assert of(cmd.Commit, drive.save(20)) == []
    rank_0 = drive.members[:1]
    assert drive.all(ev.StepsDone, workers=rank_0, records=records(20, 20, 1.0)) == []
    (commit,) = drive.all(ev.StepsDone, workers=rank_0, records=records(19, 19, 1.0))
    assert commit.step == 20


def test_a_fence_asks_for_every_record_that_is_missing():
    drive = running(10)
    drive.all(ev.StepsDone, workers=drive.members[:1], records=records(13, 15, 1.0))
    (fence,) = of(cmd.Fence, drive.lose("worker-3"))
    assert fence.heard_step == 10


def test_when_all_die_the_first_step_is_the_one_after_the_checkpoint():
    drive = running(10)
    drive.save(10)
    drive.commit(10)
    drive.steps(15)
    drive.lose(*drive.members)
    drive.ready()
    life = drive.state.current
    assert life.from_step == 10
    assert life.lost_steps == 5


def test_state_of_an_abandoned_timeline_is_never_a_source():
    """Fenced before it restored the checkpoint, a member still holds what it was to forget."""
    drive = running(20, max_dp=2, nodes=(("head", 2),))
    drive.save(20)
    drive.commit(20)
    drive.steps(25)
    for _ in range(2):
        drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
        drive.park(25, held_in=1)
        drive.tick()
        drive.all(ev.RestoreFailed, name="", error="bad copy", workers=drive.members[:1])
        drive.park(25, held_in=1)
    assert isinstance(drive.state.current.restore, CheckpointState)
    drive.all(ev.GroupBroken, error="reset", workers=drive.members[:1])
    drive.park(25, held_in=1)
    drive.tick()
    assert isinstance(drive.state.current.restore, CheckpointState)
    assert [member.at_step for member in drive.state.current.members] == [None, None]


def test_a_member_fenced_before_it_copied_keeps_what_it_had():
    drive = running(10, max_dp=2, nodes=(("head", 2),))
    drive.all(ev.GroupBroken, error="reset", workers=["worker-0"])
    drive.park(10, workers=["worker-0"])
    drive.park(11, workers=["worker-1"], records=records(11, 11, 1.0))
    assert drive.state.current.restore == PeerState(step=11, source=1)
    drive.lose("worker-1")
    drive.park(10, held_in=1)
    assert drive.state.current.restore == PeerState(step=10, source=0)
    assert drive.state.current.lost_steps == 1
