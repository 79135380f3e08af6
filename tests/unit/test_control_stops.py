"""However and whenever a run ends: what its ranks hold is saved, however long storage takes."""

import pytest
from answering import Answering, trained
from control_drive import of
from control_values import records

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.control.words.records import CheckpointState

SLOW_S = 90.0  # for each file, one after the other
FOUR = (("head", 1), ("b", 1), ("c", 1), ("d", 1))


def end_of(commands):
    (end,) = of(cmd.End, commands)
    return f"{end.status}: {end.reason}"


def running(_drive):
    """As it was made."""


def fenced(drive):
    drive.do(ev.GroupBroken(worker=drive.members[0], generation=1, error="reset"))


def forming(drive):
    fenced(drive)
    drive.park(7)


def restoring(drive):
    forming(drive)
    drive.all(ev.WorkerFormed, form_s=0.1)


def waiting(drive):
    """Two of four are lost, and a mesh takes three."""
    drive.lose("worker-0", "worker-1")
    drive.park(7)


def draining(drive):
    """One more node has come, and the mesh drains for it without saving."""
    drive.do(ev.NodeJoined(node="e", slots=1))
    drive.ready()


PHASES = {
    Phase.RUNNING: running,
    Phase.FENCING: fenced,
    Phase.FORMING: forming,
    Phase.RESTORING: restoring,
    Phase.WAITING: waiting,
    Phase.DRAINING: draining,
}
WISHES = {
    "stop": ev.StopRequested(reason="enough", wish="user"),
    "lease": ev.StopRequested(reason="the driver is gone", wish="driver"),
    "head": ev.NodeDraining(node="head", cause="preempted", deadline_s=700.0),
}


def at_boundary(drive):
    """All members stand at step 8, whose state they save."""
    return drive.park(8, drained=True, records=records(8, 8, drive.now_s))


def in_phase(phase, **more):
    drive = trained(7, nodes=FOUR, max_dp=5, min_workers=3, write_s=SLOW_S, **more)
    PHASES[phase](drive)
    assert drive.state.phase is phase
    drive.write_s = SLOW_S
    return drive


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_in_every_phase_saves_the_newest_step_that_live_ranks_hold(phase, wish):
    """control A4, M40: nothing was saved unless it came while a mesh was running."""
    drive = in_phase(phase)
    pending = pending_of(drive)
    end = end_of(drive.answer(drive.do(WISHES[wish]) + pending))
    assert end.split(":")[0] == ("preempted" if wish == "head" else "stopped")
    saved = drive.state.checkpoints.newest_step
    assert end.endswith(f"; saved at step {saved}")
    assert saved >= 7


def pending_of(drive):
    """What was asked for and is not answered yet."""
    state = drive.state
    form = of(cmd.Form, drive.commands)[-1]
    if state.phase in (Phase.FORMING, Phase.RESTORING):
        return [form]
    return [c for c in drive.commands[-3:] if isinstance(c, cmd.Fence | cmd.Drain)]


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_has_failed_too_often_saves_what_is_held(phase):
    """control A4: its budget ended it with the newest state in memory."""
    drive = in_phase(phase, max_failures=0) if phase is not Phase.WAITING else in_phase(phase)
    pending = pending_of(drive)
    if phase is Phase.WAITING:
        commands = drive.wait(601.0)
    else:
        commands = drive.answer(pending + drive.lose("worker-3"))
    end = end_of(commands)
    assert end.startswith("failed: ")
    assert end.endswith(f"; saved at step {drive.state.checkpoints.newest_step}")
    assert drive.state.checkpoints.newest_step >= 7


def test_a_stop_takes_as_long_as_files_come_in():
    """control A2: it gave the last checkpoint 10 s and two steps, then threw it away."""
    drive = trained(7, nodes=FOUR, max_dp=4, write_s=SLOW_S)
    assert end_of(drive.stop()) == "stopped: enough; saved at step 8"
    assert drive.now_s > 4 * SLOW_S


def test_what_storage_does_not_take_is_told_when_the_run_ends():
    drive = trained(7, nodes=FOUR, max_dp=4, mute=[cmd.Commit])
    drive.stop()
    commands = drive.wait(600.0)
    assert len(of(cmd.Commit, commands)) == 1, "once more, in case that only the answer was lost"
    end = end_of(commands)
    assert end.startswith("stopped: enough; nothing is saved of steps 1 to 8: its commit has not")


def test_a_writer_that_hangs_while_others_have_written_is_done_without():
    drive = trained(7, nodes=FOUR, max_dp=4)
    drive.do(WISHES["stop"])
    at_boundary(drive)
    drive.gone.add("worker-0")
    commands = drive.answer(drive.save(8, workers=drive.members[1:]))
    end = end_of(commands + drive.wait(600.0))
    assert end == "stopped: enough; saved at step 8"


def test_another_saves_the_last_step_of_which_one_part_does_not_come():
    drive = trained(7, nodes=FOUR, max_dp=4, steps=8)
    drive.steps(8)
    at_boundary(drive)
    drive.save(8, workers=drive.members[1:])
    drive.gone.add("worker-0")
    commands = drive.wait(125.0)
    (held,) = of(cmd.SaveHeld, commands)
    assert "worker-0" not in held.workers
    assert end_of(commands) == "finished: all 8 steps are done and saved"


def full_at(drive, *workers, step=8):
    """These cannot write what is saved last."""
    for worker in workers:
        of = {"worker": worker, "generation": 1, "step": step}
        drive.do(ev.SaveFailed(error="No space left on device", **of))


@pytest.mark.parametrize("ends", ["by a stop", "at its last step"])
def test_others_write_what_one_node_has_no_room_for(ends):
    """Its disk was full, and the run failed, although every other node held the state too."""
    last = ends == "at its last step"
    drive = trained(7, nodes=FOUR, max_dp=4, steps=8 if last else 80)
    drive.steps(8) if last else drive.do(WISHES["stop"])
    at_boundary(drive)
    drive.save(8, workers=drive.members[1:])
    before = len(drive.commands)
    full_at(drive, "worker-0")
    (held,) = of(cmd.SaveHeld, drive.commands[before:])
    assert "worker-0" not in held.workers
    end = end_of(drive.answer([held]))
    done = "finished: all 8 steps are done and saved"
    assert end == (done if last else "stopped: enough; saved at step 8")


def test_storage_that_takes_nothing_from_anybody_ends_the_run_after_a_few_tries():
    drive = trained(7, nodes=tuple((f"n{n}", 1) for n in range(9)), max_dp=9)
    drive.do(WISHES["stop"])
    at_boundary(drive)
    full_at(drive, "worker-0")
    for _ in range(9):
        full_at(drive, *of(cmd.SaveHeld, drive.commands)[-1].workers)
    (end,) = of(cmd.End, drive.commands)
    assert "could not write it: No space left on device" in end.reason
    assert len(of(cmd.SaveHeld, drive.commands)) == 3


def test_no_mesh_is_formed_where_no_step_is_left():
    """Its members had their parts and left before the others had theirs: it broke, each time."""
    drive = trained(7, nodes=FOUR, max_dp=4, steps=8)
    drive.steps(8)
    at_boundary(drive)
    drive.lose("worker-1")
    end = end_of(drive.answer(of(cmd.SaveHeld, drive.commands)))
    assert end == "finished: all 8 steps are done and saved"
    assert len(of(cmd.Form, drive.commands)) == 1


@pytest.mark.parametrize("left_s", [700.0, 30.0, 0.4])
def test_a_notice_is_used_to_its_end(left_s):
    """control A2: a notice of 120 s was used for 10."""
    drive = trained(7, nodes=FOUR, max_dp=4, mute=[cmd.SaveHeld])
    drive.write_s = 1e6
    began_s = drive.now_s
    drive.do(ev.NodeDraining(node="head", cause="preempted", deadline_s=began_s + left_s))
    at_boundary(drive)
    assert of(cmd.End, drive.wait(0.4 * left_s)) == []
    assert "nothing is saved of steps 1 to 8: the notice" in end_of(drive.wait(left_s))


def test_a_notice_that_comes_while_a_stop_saves_gives_it_all_its_time():
    drive = trained(7, nodes=FOUR, max_dp=4)
    drive.do(WISHES["stop"])
    at_boundary(drive)
    drive.do(ev.NodeDraining(node="head", cause="preempted", deadline_s=700.0))
    assert of(cmd.End, drive.wait(600.0)) == []
    drive.write_s = 0.01
    assert end_of(drive.answer(drive.save(8))) == "stopped: enough; saved at step 8"


def test_a_later_word_about_the_head_moves_the_end():
    drive = trained(7, nodes=FOUR, max_dp=4)
    for left_s in (30.0, 300.0):
        at_s = drive.now_s + left_s
        drive.do(ev.NodeDraining(node="head", cause="preempted", deadline_s=at_s))
    at_boundary(drive)
    assert of(cmd.End, drive.wait(100.0)) == []


AGAIN = [
    ev.StopRequested(reason="enough", wish="user"),
    ev.StopRequested(reason="the driver is gone", wish="driver"),
    ev.NodeDraining(node="head", cause="preempted", deadline_s=700.0),
]


@pytest.mark.parametrize("again", AGAIN, ids=["repeated", "lease", "head"])
def test_a_second_wish_drops_no_save_that_is_under_way(again):
    """control A3: Ray repeats a call, a lease lapses, a head drains while the user's stop saves."""
    drive = trained(7, nodes=FOUR, max_dp=4)
    drive.do(AGAIN[0])
    at_boundary(drive)
    drive.save(8, workers=drive.members[:2])
    assert of(cmd.End, drive.do(again, again)) == []
    commands = drive.save(8, workers=drive.members[2:])
    assert end_of(drive.answer(commands)) == "stopped: enough; saved at step 8"


def test_only_a_wish_to_end_at_once_does_and_says_what_is_not_saved():
    drive = trained(7, nodes=FOUR, max_dp=4)
    drive.do(AGAIN[0])
    now = ev.StopRequested(reason="now", wish="end", at_once=True)
    end = end_of(drive.do(now))
    assert end == "stopped: enough; nothing is saved of steps 1 to 7: it was ended at once"
    assert drive.do(now) == []


@pytest.mark.parametrize("phase", PHASES)
def test_an_end_at_once_waits_for_nothing_in_any_phase(phase):
    drive = in_phase(phase)
    end_of(drive.do(ev.StopRequested(reason="now", at_once=True)))


def test_a_worker_that_dies_while_a_stop_saves_costs_nothing_that_others_hold():
    """control A4: the run ended unsaved although every other replica had all of it."""
    drive = trained(7, nodes=FOUR, max_dp=4)
    drive.do(AGAIN[0])
    at_boundary(drive)
    assert end_of(drive.answer(drive.lose("worker-2"))) == "stopped: enough; saved at step 8"


def test_each_part_is_saved_by_one_parked_worker_and_no_more():
    drive = trained(7, nodes=FOUR, max_dp=4, zero_stage=2, zero_group=2, min_workers=4)
    drive.lose("worker-3")
    drive.park(7)
    commands = drive.stop()
    (held,) = of(cmd.SaveHeld, commands)
    assert (held.workers, held.step) == (("worker-0", "worker-1"), 7)
    assert end_of(commands) == "stopped: enough; saved at step 7"


def test_state_of_which_a_part_is_gone_is_told_as_lost():
    drive = trained(7, nodes=FOUR, max_dp=4, zero_stage=2, zero_group=2, min_workers=4)
    drive.lose("worker-1", "worker-3")
    drive.park(7)
    end = end_of(drive.stop())
    assert end.startswith("stopped: enough; nothing is saved of steps 1 to 7: neither ranks nor")


def test_what_a_drain_could_not_bring_to_a_boundary_parked_workers_save():
    drive = trained(7, nodes=FOUR, max_dp=4, mute=[cmd.Drain])
    drive.stop()
    commands = drive.wait(30.0)
    assert len(of(cmd.SaveHeld, commands)) == 1
    assert end_of(commands) == "stopped: enough; saved at step 7"


def test_a_checkpoint_of_parked_workers_is_asked_for_again_after_a_restart():
    drive = in_phase(Phase.WAITING, mute=[cmd.SaveHeld])
    (held,) = of(cmd.SaveHeld, drive.stop())
    assert of(cmd.SaveHeld, drive.do(ev.ControllerRestarted(down_s=2.0), after_s=2.0)) == [held]


def test_the_last_holders_may_take_as_long_as_storage_does_to_leave():
    """control A10: it gave up after 10 s, and formed, trained a step and drained again for ever."""
    drive = Answering(nodes=(("b", 2),), max_dp=2, write_s=SLOW_S, commit_s=SLOW_S)
    drive.ready()
    drive.train(5)
    drive.do(ev.NodeJoined(node="c", slots=2))
    drive.answer(drive.do(ev.NodeDraining(node="b", cause="Ray drains it", deadline_s=500.0)))
    assert drive.state.last_generation == 1
    assert drive.state.checkpoints.newest_step == 6


def test_where_storage_takes_nothing_the_last_holders_train_on_until_it_does():
    """control A10: each further try trained one step in ten seconds."""
    drive = Answering(nodes=(("b", 2),), max_dp=2)
    drive.ready()
    drive.train(5)
    drive.do(ev.NodeJoined(node="c", slots=2))
    drive.do(ev.NodeDraining(node="b", cause="Ray drains it"))
    drive.ready()
    drive.park(6, drained=True)
    drive.wait(130.0)
    drive.train(20)
    assert (drive.state.phase, drive.state.last_generation) == (Phase.RUNNING, 2)
    assert of(cmd.Drain, drive.wait(50.0)) == []
    drive.save(20)
    assert len(of(cmd.Drain, drive.answer([drive.commands[-1]]))) == 1


def test_a_death_while_all_read_a_checkpoint_ends_no_other_process():
    """control A11: reading takes minutes, and whoever reads parks at once."""
    found = CheckpointState(step=40, name="step-40.gen-0")
    drive = Answering(nodes=FOUR, max_dp=4, resume=found)
    drive.ready()
    drive.all(ev.WorkerFormed, form_s=0.1)
    assert of(cmd.Fence, drive.wait(600.0)) == []
    (fence,) = of(cmd.Fence, drive.lose("worker-1"))
    assert fence.workers == ("worker-0", "worker-2", "worker-3")
    drive.answer(drive.park(None, held_in=0))
    drive.wait(30.0)
    assert of(cmd.EndWorker, drive.commands) == []
    assert drive.state.last_generation == 2


def test_a_restore_goes_on_as_long_as_members_finish():
    drive = Answering(nodes=FOUR, max_dp=4, resume=CheckpointState(step=40, name="step-40.gen-0"))
    drive.ready()
    drive.all(ev.WorkerFormed, form_s=0.1)
    for worker in drive.members:
        assert of(cmd.Fence, drive.wait(1100.0)) == []
        drive.all(ev.WorkerRestored, workers=[worker], at_step=40, restore_s=1100.0)
    assert drive.state.phase is Phase.RUNNING
