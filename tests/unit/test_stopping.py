"""A stop says that a run has stopped when it has, and what it was told else."""

import threading

import pytest
from control_drive import running
from jobs_fake import FakeJobs, Head
from test_jobs_submitted import submission

from remesh.actors.controller.wishes import Wishes
from remesh.actors.jobs.run_states import stop_submission
from remesh.actors.run.stop_wish import STOP_LIMIT_S, stop_run
from remesh.orchestrator.control.words.events import StopRequested
from remesh.orchestrator.user_errors import RemeshError, UnreachableError, UserError


def test_it_asks_the_run_and_waits_for_its_last_word(training_run):
    """user 2: no driver is there to be stopped."""
    said = []
    word = stop_run(training_run.path, said.append, wait=training_run.wait)
    assert word == "stopped at step 0: stopped by the user; nothing is saved"
    assert training_run.wishes == [{}]
    assert said[0] == "stopping at the next step boundary"
    assert stop_run(training_run.path, said.append, wait=training_run.wait) is None


def test_a_run_that_does_not_stop_is_not_called_stopped(training_run):
    """user 2"""
    seconds = iter(range(0, 100_000, 60))
    with pytest.raises(RemeshError, match=r"has not stopped within \d+ s: draining at step 7"):
        stop_run(training_run.path, print, wait=lambda _: None, clock=lambda: next(seconds))
    assert STOP_LIMIT_S > 240  # the end of the longest save
    assert training_run.wishes == [{}]


def test_a_run_that_cannot_be_reached_is_not_called_stopped(training_run):
    """user 2: exit code 4."""
    training_run.close()
    seconds = iter(range(100_000))
    with pytest.raises(UnreachableError, match="cannot be reached from here"):
        stop_run(training_run.path, print, wait=lambda _: None, clock=lambda: next(seconds))


def test_a_run_that_is_about_to_tell_its_address_is_stopped_too(training_run):
    """user 2: its journal is there a moment earlier."""
    training_run.folder.withdraw("ab12")

    def wait(seconds):
        if training_run.folder.contact() is None and not training_run.wishes:
            training_run.belongs_to("first")
        training_run.wait(seconds)

    assert stop_run(training_run.path, print, wait=wait).startswith("stopped at step 0")
    assert training_run.wishes == [{}]


def test_the_run_of_another_submission_in_the_folder_is_left_alone(training_run):
    """user 2"""
    assert stop_run(training_run.path, print, submission="second", wait=lambda _: None) is None
    assert training_run.wishes == []


def test_a_run_that_ends_just_now_is_no_mistake_of_the_user(training_run):
    """user 2: it refuses the wish, and is gone in the next moment."""

    def over(wish):
        training_run.wishes.append(wish)
        raise UserError("the run is over: finished")

    training_run.stop = over
    training_run.server.close()
    training_run.open()
    assert stop_run(training_run.path, print, wait=lambda _: training_run.end()) is None


def test_one_that_dies_while_it_stops_is_not_called_stopped(training_run):
    """user 2"""

    def wait(_):
        if training_run.wishes:
            training_run.folder.withdraw("ab12")
            training_run.close()

    with pytest.raises(RemeshError, match="has not stopped but died: interrupted at step 0"):
        stop_run(training_run.path, print, wait=wait)


def test_one_stop_is_passed_on_however_many_ask():
    """user 2, control A3: a second one ended the run at once, unsaved."""
    events = []
    drive = running(5, nodes=(("head", 1),))
    wishes = Wishes(drive.controller, threading.Lock(), events.append)
    told = [wishes.stop({})["text"] for _ in range(2)]
    assert told == ["stopping at the next step boundary", "it is stopping already"]
    assert events == [StopRequested(reason="stopped by the user", wish="user")]
    drive.do(events[0])
    assert Wishes(drive.controller, threading.Lock(), events.append).stop({})["text"] == told[1]
    assert len(events) == 1
    drive.do(events[0], StopRequested(reason="the lease", at_once=True))
    with pytest.raises(UserError, match="the run is over: stopped"):
        wishes.stop({})


@pytest.mark.parametrize("driver", ["failed", "pending"])
def test_a_submission_has_stopped_when_its_run_has(training_run, driver):
    """user 2: for an orphan it said "first is failed" and 0; for a pending attempt "stopped"."""
    server = Head()
    server.submit("first", submission("first", f"checkpoint.dir={training_run.path}").metadata())
    server.end("first", driver, exit_code=None)
    said = []
    word = stop_submission(server, "first", said.append, wait=training_run.wait)
    assert "stopped by the user" in word
    assert (training_run.wishes, server.jobs["first"].ended) == ([{}], True)


def test_a_submission_whose_run_cannot_be_reached_is_not_called_stopped(training_run):
    """user 2: its driver has gone, and nobody could ask the run."""
    training_run.close()
    server = FakeJobs()  # a head without Remesh
    server.submit("first", submission("first", f"checkpoint.dir={training_run.path}").metadata())
    with pytest.raises(UnreachableError, match="has not brought an answer"):
        stop_submission(server, "first", print, wait=lambda _: None)
    assert server.jobs["first"].status == "stopped"
