"""Workers that live and make no progress: who is behind the others is ended (control A14)."""

from control_drive import of, running
from control_values import records

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev


def stuck(drive, worker, step=10, operation=7, *, at_rest=False):
    where = {"step": step, "operation": operation, "phase": "forward", "silent_s": 3.0}
    where["at_rest"] = at_rest
    generation = drive.state.last_generation
    return drive.do(ev.WorkerStuck(worker=worker, generation=generation, **where))


def ended(drive):
    return [command.worker for command in of(cmd.EndWorker, drive.commands)]


def test_who_is_behind_the_others_is_ended_and_no_other():
    drive = running(10)
    for worker, operation in (("worker-0", 7), ("worker-3", 7), ("worker-2", 6), ("worker-1", 7)):
        stuck(drive, worker, operation=operation)
    assert drive.state.phase == "running", "the others are heard first"
    commands = drive.tick()
    assert ended(drive) == ["worker-2"]
    assert "it hangs before operation 6 of step 11" in of(cmd.EndWorker, commands)[0].reason
    assert drive.state.phase == "fencing"
    assert drive.state.budget.total == 1


def test_an_earlier_step_is_further_behind_than_an_earlier_operation():
    drive = running(10)
    for worker in ("worker-0", "worker-2", "worker-3"):
        stuck(drive, worker, step=11, operation=1)
    stuck(drive, "worker-1", step=10, operation=9)
    drive.tick()
    assert ended(drive) == ["worker-1"]


def test_the_only_one_of_a_mesh_is_ended():
    drive = running(10, nodes=(("head", 1),), max_dp=1)
    stuck(drive, "worker-0")
    drive.tick()
    assert ended(drive) == ["worker-0"]


def test_of_whom_nothing_is_told_is_waited_for_and_nobody_else_is_to_blame():
    """Seed 10769: it waited for slow storage between two steps, and the other was killed."""
    drive = running(10)
    saves, *others = drive.members
    for worker in others:
        stuck(drive, worker)
    drive.tick()
    assert ended(drive) == []
    assert drive.state.phase == "running"
    stuck(drive, saves, operation=2)
    drive.tick()
    assert ended(drive) == [saves], "what the others have told is not forgotten"


def test_once_all_are_at_rest_who_is_behind_is_ended_at_once():
    drive = running(10)
    *others, hangs = drive.members
    for worker in others:
        assert stuck(drive, worker, at_rest=True) == []
    stuck(drive, hangs, operation=6, at_rest=True)
    assert ended(drive) == [hangs]
    assert drive.state.phase == "fencing"


def test_one_that_computes_is_given_its_time_however_early_the_others_tell():
    drive = running(10)
    *others, slow = drive.members
    for worker in others:
        stuck(drive, worker, at_rest=True)
    drive.tick()
    assert drive.state.deadlines.judge_s is None
    assert (ended(drive), drive.state.phase) == ([], "running")
    stuck(drive, slow, operation=6)
    assert ended(drive) == [], "the others are heard first"
    drive.tick()
    assert ended(drive) == [slow]


def test_a_network_that_stumbles_is_given_its_time():
    """All wait at the same operation."""
    drive = running(10)
    for worker in drive.members:
        stuck(drive, worker, at_rest=True)
    assert drive.state.phase == "running"
    for worker in drive.members[:-1]:
        stuck(drive, worker)
    drive.tick()
    assert drive.state.phase == "running"
    stuck(drive, drive.members[-1])
    drive.tick()
    assert (ended(drive), drive.state.phase) == ([], "fencing")
    assert drive.state.current.stalled


def test_whom_nobody_waits_for_is_given_its_time():
    drive = running(10, nodes=(("head", 1),), max_dp=1)
    stuck(drive, "worker-0", at_rest=True)
    assert (ended(drive), drive.state.phase) == ([], "running")
    stuck(drive, "worker-0")
    drive.tick()
    assert ended(drive) == ["worker-0"]


def test_who_went_on_after_it_was_at_rest_counts_for_nothing():
    drive = running(10)
    for worker in drive.members[:-1]:
        stuck(drive, worker, at_rest=True)
    drive.steps(13)
    for worker in drive.members:
        stuck(drive, worker, step=13)
    drive.tick()
    assert drive.state.current.stalled


def test_nor_does_who_went_on_where_the_records_in_between_come_later():
    """Seed 155274: words of a partition that was over ended a rank that had gone on."""
    drive = running(10)
    later = records(21, 23, drive.now_s)
    drive.all(ev.StepsDone, workers=drive.members[:1], records=later)
    assert (drive.state.step, drive.state.current.heard_step) == (23, 10)
    for worker in drive.members[:-1]:
        stuck(drive, worker, at_rest=True)
    stuck(drive, drive.members[-1], operation=3, at_rest=True)
    assert ended(drive) == []


def test_those_who_wait_for_one_that_has_no_state_yet_are_not_to_blame():
    """Seed 3794: it restored for long, and the one that waited in its first step was killed."""
    drive = running(10)
    drive.lose("worker-3")
    drive.park(10, held_in=1)
    drive.all(ev.WorkerFormed, form_s=0.1)
    _, *others = drive.members
    drive.all(ev.WorkerRestored, workers=others, at_step=10, restore_s=0.1)
    for worker in others:
        stuck(drive, worker)
    drive.tick()
    assert ended(drive) == []
    assert drive.state.phase == "restoring"


def test_where_all_stand_at_the_same_operation_nobody_is_ended_and_the_try_is_empty():
    drive = running(10)
    for worker in drive.members:
        stuck(drive, worker)
    drive.tick()
    assert ended(drive) == []
    assert drive.state.phase == "fencing"
    drive.park(10, held_in=1)
    assert drive.state.budget.empty_tries == 1
    assert drive.state.phase == "forming"


def test_one_that_goes_on_is_forgotten_and_told_again_when_it_stands_still_again():
    """B134: a stall of 3 s, progress, and another one."""
    drive = running(10)
    for worker, operation in (("worker-0", 7), ("worker-1", 6), ("worker-2", 7), ("worker-3", 7)):
        stuck(drive, worker, operation=operation)
    drive.steps(12)
    drive.tick()
    assert ended(drive) == []
    assert drive.state.phase == "running"
    for worker, operation in (("worker-0", 7), ("worker-1", 6), ("worker-2", 7), ("worker-3", 7)):
        stuck(drive, worker, step=12, operation=operation)
    drive.tick()
    assert ended(drive) == ["worker-1"]


def test_a_mesh_that_is_being_left_judges_nobody():
    drive = running(10)
    stuck(drive, "worker-1")
    drive.lose("worker-3")
    drive.tick()
    assert "worker-1" not in ended(drive)
    stuck(drive, "worker-1")
    assert drive.state.deadlines.judge_s is None


def test_a_controller_that_is_back_hears_the_others_before_it_judges():
    """It was told by one who waits for the one that hangs, and died before the rest could tell."""
    drive = running(10)
    waits = drive.members[-1]
    stuck(drive, waits)
    drive.do(ev.ControllerRestarted(down_s=3.0), after_s=3.0)
    drive.do(ev.Tick())
    assert not ended(drive)
    stuck(drive, drive.members[0], operation=3)
    for other in drive.members[1:]:
        stuck(drive, other)
    hangs = drive.members[0]
    while not ended(drive):
        drive.do(ev.Tick(), after_s=1.0)
    assert [one.worker for one in of(cmd.EndWorker, drive.commands)] == [hangs]
