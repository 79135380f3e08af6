"""Checkpoints are committed one after the other, by step: none is overtaken and swept."""

import tracemalloc

import pytest
from control_drive import Drive, of, running
from control_values import record

from remesh.orchestrator.control.memory.checkpoint_book import MAX_SAVES, Checkpoints
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.parallel.state.root_manifest import ShardFile


def commits(commands):
    return [command.step for command in of(cmd.Commit, commands)]


def failed(step, generation=1):
    return ev.CommitFailed(generation=generation, step=step, error="the disk is full")


def test_a_second_one_waits_until_the_first_is_there():
    drive = running(40)
    assert commits(drive.save(20)) == [20]
    assert commits(drive.save(40)) == []
    assert commits(drive.do(ev.CheckpointCommitted(generation=1, step=20, name="20"))) == [40]


def test_one_that_fails_holds_up_no_later_one():
    drive = running(40)
    drive.save(20)
    drive.save(40)
    assert commits(drive.do(failed(20))) == [40]
    assert commits(drive.do(failed(20))) == []


def test_a_newer_one_that_is_complete_first_does_not_wait_for_files_to_come():
    drive = running(40)
    drive.save(20, workers=drive.members[:1])
    assert commits(drive.save(40)) == [40]


def test_a_controller_that_is_back_asks_for_the_older_one_first():
    """The files of the newer one may come in before it knows that it was away."""
    drive = running(40)
    drive.save(20)
    assert commits(drive.save(40)) == []
    assert commits(drive.do(ev.ControllerRestarted(down_s=1.5))) == [20]
    assert commits(drive.do(ev.CheckpointCommitted(generation=1, step=20, name="20"))) == [40]


def test_the_last_one_of_a_mesh_waits_for_no_answer_to_one_before():
    """A run that was to end gave it up while an older one hung."""
    drive = running(20)
    drive.save(20)
    drive.do(ev.StopRequested(reason="enough"))
    drive.steps(21)
    drive.park(21, drained=True)
    assert commits(drive.save(21)) == [21]
    assert commits(drive.save(21)) == []
    drive.commit(21)
    assert drive.state.reason == "enough; saved at step 21"


def quiet(drive, seconds):
    """Steps go on, and each Tick that is asked for comes."""
    commands, until_s = [], drive.now_s + seconds
    while drive.now_s < until_s:
        drive.steps(drive.state.step + 1)
        due_s = min(drive.controller.next_deadline_s(), drive.now_s + 30.0)
        commands += drive.do(ev.Tick(), after_s=due_s - drive.now_s)
    return commands


def test_one_that_never_answers_holds_up_no_later_one_and_is_told_once():
    """control A14: no checkpoint was ever committed again, and nobody said so."""
    drive = running(20)
    drive.save(20)
    drive.steps(40)
    drive.save(40)
    commands = quiet(drive, 600.0)
    assert commits(commands)[0] == 40
    said = [c.text for c in of(cmd.Announce, commands) if "step 20" in c.text]
    assert said == [
        "the checkpoint at step 20 is not saved so far: its commit has not answered for 240 s"
    ]


def test_an_answer_that_comes_late_counts_if_the_run_still_stands_on_it():
    drive = running(20)
    drive.save(20)
    quiet(drive, 300.0)
    drive.commit(20)
    assert drive.state.checkpoints.newest_step == 20


def test_a_commit_that_is_told_twice_counts_once():
    drive = running(20)
    for step in (10, 20):
        drive.save(step)
        drive.commit(step)
    for step in (10, 20):
        drive.commit(step)
    assert [state.step for state in drive.state.checkpoints.good] == [20, 10]


def test_the_commit_of_an_abandoned_timeline_counts_for_nothing():
    """control M11: the run has gone back to before it meanwhile."""
    drive = running(20)
    drive.save(20)
    drive.lose(*drive.members)
    drive.ready()
    assert drive.state.current.from_step == 0
    late = ev.CheckpointCommitted(generation=1, step=20, name="step-20.gen-1")
    assert drive.do(late) == []
    assert drive.state.checkpoints.good == []


def test_going_back_behind_a_checkpoint_abandons_it():
    """control M10: the next one at its step was taken for there already."""
    newest, older = (CheckpointState(step=step, name=f"step-{step}.gen-0") for step in (40, 20))
    drive = Drive(resume=newest, fallbacks=(older,), max_dp=1, nodes=(("head", 1),))
    drive.ready()
    for _ in range(2):
        drive.all(ev.WorkerFormed, form_s=0.1)
        drive.all(ev.RestoreFailed, name=newest.name, error="hash differs")
        drive.park(None, held_in=0)
    assert drive.state.current.from_step == 20
    assert drive.state.checkpoints.good == [older]
    drive.train(40)
    assert commits(drive.save(40)) == [40]


@pytest.mark.parametrize("order", [(8, 8, 7), (8, 7, 8), (7, 7, 8)])
def test_a_step_counts_once_in_whatever_order_it_is_told_of_and_however_often(order):
    """control M05: two skipped steps were four, which may end the run."""
    drive = running(6)
    for step in order:
        told = (record(step, applied=False),)
        drive.all(ev.StepsDone, workers=drive.members[:1], records=told)
    assert drive.state.current.heard_step == 8
    assert drive.state.fruitless.in_row == 2


def saved(worker, step, generation=1):
    file = ShardFile(name=worker, size_bytes=1, digest="0")
    return ev.FilesSaved(worker=worker, generation=generation, step=step, files=(file,))


def test_files_of_many_ranks_are_counted_without_a_look_at_all_ranks_each_time():
    """control A7: a copy of all names was made for each file, 8.5 s a checkpoint."""
    names = frozenset(f"worker-{number}" for number in range(16_384))
    book = Checkpoints()
    book.begin(1, names, 0)
    first, *others = sorted(names)
    assert book.add_files(saved(first, 20))
    tracemalloc.start()
    for name in others[:200]:
        assert book.add_files(saved(name, 20))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 200_000, "a copy of the names takes a megabyte"
    assert not book.add_files(saved(first, 20)), "doubled"


def test_checkpoints_that_come_to_nothing_are_forgotten():
    """Nothing grows with the steps or with the generations."""
    names = frozenset({"worker-0", "worker-1"})
    book = Checkpoints()
    for generation in range(1, 50):
        book.begin(generation, names, 20 * (generation - 1))
        for step in range(20 * generation, 20 * generation + 20):
            book.add_files(saved("worker-0", step, generation))
            assert len(book.saves) <= 2 * MAX_SAVES
            assert len(book.writers) <= 2
