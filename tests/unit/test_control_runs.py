"""How runs start, resume, grow and end, what they report, and what a decision costs."""

import pytest
from control_drive import Drive, of, running
from control_values import records
from counted import growth, lines_run
from sized import a_loss_among

from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState, FreshState


def test_a_finished_run_does_nothing_when_it_is_started_again():
    done = CheckpointState(step=80, name="step-80")
    drive = Drive(resume=done)
    assert [type(command) for command in drive.commands] == [cmd.End]
    assert drive.commands[0].status == "finished"
    assert drive.state.step == 80


def test_a_resumed_run_goes_on_behind_its_checkpoint_with_new_generations():
    middle = CheckpointState(step=16, name="step-16.gen-3")
    drive = running(32, steps=32, resume=middle, last_generation=3)
    (form,) = of(cmd.Form, drive.commands)
    assert (form.generation, form.from_step, form.restore) == (4, 16, middle)
    drive.save(32)
    drive.commit(32)
    drive.park(32, drained=True)
    assert drive.state.phase == "finished"


def test_four_become_three_at_once_and_six_in_one_step():
    drive = running(10, nodes=(("head", 2), ("b", 2)), max_dp=6, min_workers=3)
    drive.lose("worker-3")
    drive.park(10)
    assert len(drive.state.current.members) == 3
    drive.train(12)
    drive.do(ev.NodeJoined(node="c", slots=2))
    drive.ready()
    drive.park(13, drained=True, records=records(13, 13, 1.0))
    assert drive.state.last_generation == 3
    assert len(drive.state.current.members) == 6


def test_a_start_that_takes_too_long_is_a_failure_each_time_and_ends_the_run():
    drive = Drive(nodes=(("head", 1),), max_failures=2)
    for _ in range(20):
        if drive.state.phase != "waiting":
            break
        drive.now_s = drive.controller.next_deadline_s()
        ended = of(cmd.EndWorker, drive.do(ev.Tick(), after_s=0.0))
        drive.lose(*(command.worker for command in ended))
    assert drive.state.budget.total == 3
    assert drive.commands[-1].status == "failed"
    limits = [f"did not start within {limit_s} s" for limit_s in (60, 120, 240)]
    assert [end.reason for end in of(cmd.EndWorker, drive.commands)] == limits, "security B1"
    assert "worker-2 on head did not start within 240 s" in drive.commands[-1].reason


def test_a_mesh_that_makes_no_step_is_left():
    drive = running(10)
    drive.now_s = drive.controller.next_deadline_s()
    (fence,) = of(cmd.Fence, drive.do(ev.Tick(), after_s=0.0))
    assert fence.workers == ("worker-0", "worker-1", "worker-2", "worker-3")


def test_a_job_that_fails_while_its_workers_warm_up_ends_at_once():
    drive = Drive()
    values = {"error": "no data", "user_error": True, "certain": True}
    erred = ev.WorkerErred(worker="worker-0", generation=0, **values)
    (end,) = of(cmd.End, drive.do(erred))
    assert (end.status, end.reason, end.user_error) == ("failed", "no data", True)


def test_a_worker_that_restored_another_step_does_not_train():
    drive = Drive()
    drive.ready()
    drive.all(ev.WorkerFormed, form_s=0.01)
    drive.all(ev.WorkerRestored, workers=["worker-0"], at_step=7, restore_s=0.0)
    assert drive.state.phase == "fencing"


def test_a_second_controller_ends_this_one():
    drive = running(20)
    drive.save(20)
    text = "another controller has claimed the run"
    drive.do(ev.CommitFailed(generation=1, step=20, error=text, fenced=True))
    assert drive.commands[-1] == cmd.End(status="failed", reason=text)


def test_recovery_is_counted_from_the_death_to_the_end_of_the_first_step():
    drive = running(10)
    died_at_s = drive.now_s
    drive.do(ev.WorkerLost(worker="worker-3", cause="killed"), after_s=0.1)
    drive.park(10)
    drive.train()
    drive.now_s += 0.3
    drive.steps(11)
    # The moment of the death may be told last.
    drive.do(ev.WorkerLost(worker="worker-3", cause="killed", died_at_s=died_at_s))
    life = view_of(drive.controller).generations[-1]
    parts = life.recovery_parts
    spans = [parts.detect, parts.decide, parts.form, parts.restore]
    spans += [parts.first_step, parts.retrain]
    assert parts.detect == pytest.approx(0.1)
    assert sum(spans) == pytest.approx(life.recovery_s)
    assert all(span >= 0.0 for span in spans)
    assert life.lost_steps == 0


def test_the_view_tells_who_is_where():
    drive = running(10, spares=1, nodes=(("head", 3), ("b", 2)))
    view = view_of(drive.controller)
    assert (view.phase, view.generation, view.step, view.steps) == ("running", 1, 10, 80)
    assert sorted(w.rank for w in view.workers if w.rank is not None) == [0, 1, 2, 3]
    assert [node.workers for node in view.nodes] == [3, 2]
    assert view.layout.dp == 4
    assert not view.ended


def test_a_member_costs_the_same_among_thousands():
    assert growth(lambda num: lines_run(a_loss_among(num)[1]), 32, 256) < 1.5


@pytest.fixture
def huge():
    return a_loss_among(2048)


def test_sixteen_thousand_members_are_fenced_and_formed(huge):
    drive, lose_one = huge
    size = len(drive.members)
    assert drive.state.current.restore == FreshState()
    (fence,) = of(cmd.Fence, lose_one())
    assert size == 16_384
    assert len(fence.workers) == len(drive.members) == size - 1
