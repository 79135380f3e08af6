"""A stop says that a run has stopped when it has, and what it was told else."""

import threading
from contextlib import closing

import pytest
from control_drive import running
from control_values import options
from jobs_fake import FakeJobs

from remesh.actors.controller.wishes import Wishes
from remesh.actors.run.contact import Contact
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.journal_files import JournalWriter
from remesh.actors.run.status_server import StatusServer
from remesh.orchestrator.control.words.events import NodeJoined, RunStarted, StopRequested
from remesh.orchestrator.user_errors import RemeshError, UnreachableError, UserError

TOKEN = "0123456789abcdef"


class TrainingRun:
    """A live run, as its folder and its status server tell it; it stops after some questions."""

    def __init__(self, path, *, answers_until_stopped=3):
        self.path = path
        self.folder = RunFolder(path)
        self.journal = JournalWriter(path, 1, options())
        self.journal.event(NodeJoined(node="n", slots=2), 1.0)
        self.journal.event(RunStarted(), 1.5)
        self.wishes, self.left = [], answers_until_stopped
        self.server = StatusServer({"/status": self.status}, TOKEN, actions={"/stop": self.stop})
        self.folder.publish(
            Contact(
                run="ab12", host=self.server.host, port=self.server.port, token=TOKEN,
                address="127.0.0.1:9", pid=1, started_s=1.0, submission="first",
            )
        )  # fmt: skip

    def status(self):
        if self.wishes:
            self.left -= 1
        phase = "draining" if self.wishes else "running"
        return {"phase": phase, "step": 7, "steps": 80, "ended": False, "reason": ""}

    def stop(self, wish):
        self.wishes.append(wish)
        return {"text": "stopping at the next step boundary"}

    def wait(self, _seconds):
        if self.wishes and self.left <= 0:
            self.end()

    def end(self):
        self.journal.event(StopRequested(reason="stopped by the user"), 2.0)
        self.folder.withdraw("ab12")
        self.close()

    def close(self):
        self.server.close()


@pytest.fixture
def run(tmp_path):
    with closing(TrainingRun(tmp_path)) as run:
        yield run


@pytest.mark.xfail(strict=True, reason="user 2")
def test_it_asks_the_run_and_waits_for_its_last_word(run):
    """user 2: no driver is there to be stopped."""
    from remesh.actors.run.stopping import stop_run

    said = []
    word = stop_run(run.path, said.append, wait=run.wait)
    assert word == "stopped at step 0: stopped by the user; nothing is saved"
    assert run.wishes == [{}]
    assert said[0] == "stopping at the next step boundary"
    assert stop_run(run.path, said.append, wait=run.wait) is None


@pytest.mark.xfail(strict=True, reason="user 2")
def test_a_run_that_does_not_stop_is_not_called_stopped(run):
    """user 2"""
    from remesh.actors.run.stopping import STOP_LIMIT_S, stop_run

    seconds = iter(range(0, 100_000, 60))
    with pytest.raises(RemeshError, match=r"has not stopped within \d+ s: draining at step 7"):
        stop_run(run.path, print, wait=lambda _: None, clock=lambda: next(seconds))
    assert STOP_LIMIT_S > 240  # the end of the longest save
    assert run.wishes == [{}]


@pytest.mark.xfail(strict=True, reason="user 2")
def test_a_run_that_cannot_be_reached_is_not_called_stopped(run):
    """user 2: exit code 4."""
    from remesh.actors.run.stopping import stop_run

    run.close()
    seconds = iter(range(100_000))
    with pytest.raises(UnreachableError, match="cannot be reached from here"):
        stop_run(run.path, print, wait=lambda _: None, clock=lambda: next(seconds))


@pytest.mark.xfail(strict=True, reason="user 2")
def test_one_stop_is_passed_on_however_many_ask():
    """user 2: a second one would end the run at once, unsaved."""
    events = []
    drive = running(5, nodes=(("head", 1),))
    wishes = Wishes(drive.controller, threading.Lock(), events.append)
    told = [wishes.stop({})["text"] for _ in range(2)]
    assert told == ["stopping at the next step boundary", "it is stopping already"]
    assert events == [StopRequested(reason="stopped by the user")]
    drive.do(events[0])
    assert Wishes(drive.controller, threading.Lock(), events.append).stop({})["text"] == told[1]
    assert len(events) == 1
    drive.do(events[0])
    with pytest.raises(UserError, match="the run is over: stopped"):
        wishes.stop({})


@pytest.mark.parametrize("driver", ["failed", "pending"])
@pytest.mark.xfail(strict=True, reason="user 2")
def test_a_submission_has_stopped_when_its_run_has(run, driver, submission_in):
    """user 2: for an orphan it said "first is failed" and 0; for a pending attempt "stopped"."""
    from remesh.actors.jobs.runs import stop_submission

    server = FakeJobs()
    server.submit("first", submission_in(run.path).metadata())
    server.end("first", driver, exit_code=None)
    said = []
    word = stop_submission(server, "first", said.append, wait=run.wait)
    assert "stopped by the user" in word
    assert (run.wishes, server.jobs["first"].ended) == ([{}], True)


@pytest.fixture
def submission_in():
    """A submission of the example whose run has this folder."""
    from test_jobs_submitted import submission

    return lambda path: submission("first", f"checkpoint.dir={path}")
