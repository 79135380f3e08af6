"""A controller that is back after its death decides as the one before would have."""

import pytest
from control_drive import of, running

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import Phase


def restart(drive, down_s):
    return drive.do(ev.ControllerRestarted(down_s=down_s), after_s=down_s)


def quiet(drive, seconds):
    """No word for so long, with every Tick that the controller asks for."""
    until_s = drive.now_s + seconds
    commands = []
    while (due_s := drive.controller.next_deadline_s()) is not None and due_s <= until_s:
        commands += drive.do(ev.Tick(), after_s=due_s - drive.now_s)
    drive.now_s = until_s
    return commands


def test_gaps_below_the_limit_restart_nothing_however_many():
    drive = running(5)
    for gap in range(5):
        assert of(cmd.Fence, quiet(drive, 20.0)) == []
        drive.steps(6 + gap)
    assert drive.state.phase is Phase.RUNNING


def test_a_gap_beyond_the_limit_restarts_once_and_the_next_short_one_does_not():
    drive = running(5)
    (fence,) = of(cmd.Fence, quiet(drive, 63.0))
    drive.park(5)
    drive.train(10)
    assert fence.generation == 1
    assert of(cmd.Fence, quiet(drive, 20.0)) == []
    drive.steps(11)
    assert (drive.state.phase, drive.state.last_generation) == (Phase.RUNNING, 2)
    assert drive.state.budget.failures == 0


def test_who_waits_for_its_own_write_is_not_taken_for_one_that_makes_no_step():
    """One file that took longer than a step may re-formed the mesh, which saved again."""
    drive = running(5)
    drive.save(5, workers=drive.members[1:])
    assert of(cmd.Fence, quiet(drive, 110.0)) == []
    drive.save(5, workers=drive.members[:1])
    drive.commit(5)
    drive.steps(6)
    assert len(of(cmd.Fence, quiet(drive, 63.0))) == 1


@pytest.mark.parametrize("down_s", [1.0, 25.0, 1000.0])
def test_no_time_passes_for_the_ranks_while_nobody_listens(down_s):
    drive = running(5)
    quiet(drive, 40.0)
    restart(drive, down_s)
    assert of(cmd.Fence, quiet(drive, 40.0)) == []
    assert drive.state.last_generation == 1


def test_a_restart_alone_makes_no_generation_and_no_failure():
    drive = running(5)
    for _ in range(20):
        restart(drive, 2.0)
    assert (drive.state.last_generation, drive.state.budget.total) == (1, 0)
    assert of(cmd.Form, drive.commands)[1:] == of(cmd.Fence, drive.commands) == []


def test_members_get_all_their_time_to_leave_once_more():
    drive = running(5)
    drive.lose("worker-1")
    commands = restart(drive, 3.0)
    (fence,) = of(cmd.Fence, commands)
    assert fence.workers == ("worker-0", "worker-2", "worker-3")
    assert of(cmd.EndWorker, quiet(drive, 5.0)) == []
    assert len(of(cmd.EndWorker, quiet(drive, 2.0))) == 3


def test_a_drain_is_asked_for_again_and_so_is_its_save():
    drive = running(5)
    (before,) = of(cmd.Drain, drive.do(ev.StopRequested(reason="enough")))
    assert of(cmd.Drain, restart(drive, 2.0)) == [before]
    assert before.save


def test_the_last_step_needs_no_drain():
    drive = running(80)
    assert drive.state.phase is Phase.DRAINING
    assert of(cmd.Drain, restart(drive, 2.0)) == []


def test_a_commit_under_way_is_asked_for_again_and_ends_once():
    drive = running(20)
    (before,) = of(cmd.Commit, drive.save(20))
    assert of(cmd.Commit, restart(drive, 2.0)) == [before]
    drive.commit(20)
    assert of(cmd.Commit, restart(drive, 2.0)) == []
    assert drive.state.checkpoints.newest_step == 20


def test_of_commits_that_died_with_their_controller_the_older_is_asked_for_if_the_newest_fails():
    drive = running(20)
    (older,) = of(cmd.Commit, drive.save(20))
    drive.steps(40)
    drive.do(ev.StopRequested(reason="enough"))
    (newest,) = of(cmd.Commit, drive.save(40))
    assert of(cmd.Commit, restart(drive, 2.0)) == [newest]
    refused = ev.CommitFailed(generation=1, step=40, error="connection reset")
    assert of(cmd.Commit, drive.do(refused)) == [older]


def test_starts_and_ends_of_workers_are_asked_for_again():
    drive = running(5)
    drive.do(ev.WorkerFrozen(worker="worker-3", silent_s=0.6))
    (end,) = of(cmd.EndWorker, restart(drive, 2.0))
    assert end.worker == "worker-3"
    drive.lose("worker-3")
    drive.park(5)
    drive.train(6)
    assert [c.worker for c in of(cmd.StartWorker, drive.commands)][4:] == ["worker-4"]
    assert [c.worker for c in of(cmd.StartWorker, restart(drive, 2.0))] == ["worker-4"]
    quiet(drive, 59.0)
    assert "worker-4" in drive.state.roster.workers


def test_waiting_for_workers_goes_on_for_what_was_left_of_it():
    drive = running(5, min_workers=4, wait_limit_s=100.0, nodes=(("head", 4),))
    drive.lose("worker-1")
    drive.park(5)
    drive.do(*(ev.WorkerLost(worker=f"worker-{n}", cause="killed") for n in (0, 2, 3)))
    assert drive.state.phase is Phase.WAITING
    left_s = drive.state.deadlines.phase_s - drive.now_s
    restart(drive, 50.0)
    assert drive.state.deadlines.phase_s - drive.now_s == pytest.approx(left_s)


def test_a_head_that_is_drained_stops_the_run_once():
    drive = running(5)
    drain = ev.NodeDraining(node="head", cause="Ray drains it")
    assert len(of(cmd.Drain, drive.do(drain))) == 1
    restart(drive, 2.0)
    assert of(cmd.End, drive.do(drain)) == []
    assert drive.state.phase is Phase.DRAINING
