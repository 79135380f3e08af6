"""Checkpoints are committed one after the other, by step: none is overtaken and swept."""

from control_drive import of, running

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev


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
