"""A commit that storage refuses is asked for once more, where nothing else would save its step."""

import pytest
from answering import trained
from control_drive import of
from control_values import records

from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev

FOUR = (("head", 1), ("b", 1), ("c", 1), ("d", 1))


def refused(drive, step=8):
    return drive.do(ev.CommitFailed(generation=1, step=step, error="connection reset"))


def last_words(drive):
    return [f"{end.status}: {end.reason}" for end in of(cmd.End, drive.commands)]


def at_its_end(how):
    """All of its members are parked at step 8, and the commit of that is asked for."""
    last = how == "by its last step"
    drive = trained(7, nodes=FOUR, max_dp=4, steps=8 if last else 80, mute=[cmd.Commit])
    drive.steps(8) if last else drive.stop()
    drive.park(8, drained=True, records=records(8, 8, drive.now_s))
    drive.save(8)
    return drive


ENDS = ("by its last step", "by a stop")


@pytest.mark.parametrize("how", ENDS)
def test_a_refused_last_commit_ends_no_run(how):
    drive = at_its_end(how)
    commands = refused(drive)
    assert [commit.step for commit in of(cmd.Commit, commands)] == [8]
    (said,) = of(cmd.Announce, commands)
    assert said.text.endswith(
        "is not saved so far: connection reset; its commit is asked for once more"
    )
    drive.commit(8)
    (end,) = last_words(drive)
    assert end.startswith("finished: " if how == ENDS[0] else "stopped: enough; saved at step 8")


@pytest.mark.parametrize("how", ENDS)
def test_one_that_is_refused_twice_does(how):
    drive = at_its_end(how)
    refused(drive)
    refused(drive)
    (end,) = last_words(drive)
    assert end.endswith("connection reset")


def test_no_answer_and_a_refusal_are_each_tried_again():
    """Seed 4726: the first one hung, the next was refused, and the run threw its steps away."""
    drive = at_its_end("by a stop")
    late = drive.do(ev.Tick(), after_s=drive.controller.next_deadline_s() - drive.now_s)
    assert len(of(cmd.Commit, late)) == 1
    assert len(of(cmd.Commit, refused(drive))) == 1
    drive.commit(8)
    assert last_words(drive) == ["stopped: enough; saved at step 8"]


def test_one_that_was_refused_before_the_run_was_to_end_is_tried_again_then():
    """Its files came in, and its answer, before all had parked: nobody waited for it then."""
    drive = trained(8, nodes=FOUR, max_dp=4, steps=80, mute=[cmd.Commit, cmd.Drain])
    drive.save(8)
    assert of(cmd.Commit, refused(drive)) == []
    drive.stop()
    commands = drive.park(8, drained=True)
    assert [commit.step for commit in of(cmd.Commit, commands)] == [8]
