"""A loss that is not finite is told as what it is, everywhere, and does not go on for ever."""

import json
import math

import pytest
from control_drive import of, running
from control_values import record, records
from rich.console import Console

from remesh.actors.controller.commits import LossesByStep
from remesh.actors.run.told import status_of
from remesh.cli.screen.said import progress_line
from remesh.cli.screen.shapes import show_values
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.phases import Phase
from remesh.orchestrator.job.driver_words import RunStatus

RUINED = {"loss": math.nan, "grad_norm": math.inf, "applied": False}


def tell(drive, *told):
    return drive.all(ev.StepsDone, workers=drive.members[:1], records=told)


def said(commands):
    return [command.text for command in of(cmd.Announce, commands)]


def test_too_many_skipped_steps_in_a_row_end_the_run():
    """inputs A1, parallel A5: a run of nothing but skips finished with exit code 0."""
    drive = running(20, max_skipped_steps=4)
    tell(drive, *records(21, 23, drive.now_s, **RUINED))
    assert drive.state.phase is Phase.RUNNING
    (drain,) = of(cmd.Drain, tell(drive, record(24, **RUINED)))
    assert drain.save  # what was learned up to step 20
    drive.park(25, drained=True)
    drive.save(25)
    drive.commit(25)
    (end,) = of(cmd.End, drive.commands)
    assert (end.status, end.user_error) == ("failed", False)
    assert "steps 21 to 24 updated nothing, train.max_skipped_steps = 4 in a row" in end.reason
    assert "at a learning rate of 0.1" in end.reason


def test_what_was_saved_before_them_is_not_saved_again():
    drive = running(20, max_skipped_steps=4)
    drive.save(20)
    drive.commit(20)
    (end,) = of(cmd.End, tell(drive, *records(21, 24, drive.now_s, **RUINED)))
    assert end.status == "failed"


def test_steps_that_learn_between_them_end_the_row():
    drive = running(20, max_skipped_steps=2)
    for step in range(21, 41, 2):
        tell(drive, record(step, **RUINED), record(step + 1))
    assert drive.state.phase is Phase.RUNNING


def test_a_skipped_step_is_said_and_a_long_row_of_them_now_and_then():
    drive = running(20, max_skipped_steps=1000)
    told = said(tell(drive, *records(21, 60, drive.now_s, **RUINED)))
    assert told[0] == "step 21 updated nothing: its loss or gradient is not finite"
    assert told[1] == "step 22 updated nothing, 2 in a row: its loss or gradient is not finite"
    assert len(told) == 6


def test_a_step_without_a_token_is_said_to_have_none():
    drive = running(20)
    (text,) = said(tell(drive, record(21, **RUINED, tokens=0)))
    assert text == "step 21 updated nothing: it has no token"


def test_a_step_that_is_told_twice_counts_once():
    drive = running(20, max_skipped_steps=3)
    for _ in range(3):
        tell(drive, record(21, **RUINED))
    assert drive.state.fruitless.in_row == 1


def test_no_checkpoint_is_rated_by_it():
    losses = LossesByStep()
    told = (record(10, loss=2.5), record(11, **RUINED))
    losses.note(ev.StepsDone(worker="w", generation=1, records=told))
    assert (losses.at(10), losses.at(11)) == (2.5, None)
    again = (record(10, **RUINED),)
    losses.note(ev.StepsDone(worker="w", generation=2, records=again))
    assert losses.at(10) is None


def test_it_is_null_for_programs_and_words_for_people(capsys):
    drive = running(20)
    tell(drive, record(21, **RUINED))
    status = status_of(view_of(drive.controller))
    told = json.loads(json.dumps(status, allow_nan=False))
    assert (told["last"]["did"]["loss"], told["last"]["did"]["grad_norm"]) == (None, None)
    show_values(Console(width=300, color_system=None), status)
    assert "loss=not finite grad_norm=not finite" in capsys.readouterr().out


@pytest.mark.parametrize(("loss", "text"), [(math.nan, "not finite"), (2.0, "2.0000")])
def test_the_line_of_progress_says_it(loss, text):
    status = RunStatus(phase="RUNNING", step=3, steps=9, loss=loss)
    assert f"loss {text}" in progress_line(status)
