"""Who has lost a run to somebody else hears of it from the storage alone."""

import subprocess
import sys

import pytest
from control_values import options
from waiting import soon

from remesh.actors.run.claim_watch import ClaimWatch
from remesh.actors.run.claims import claim_path
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.commands import End

OTHER = """
import sys
from pathlib import Path
from remesh.actors.run.folder import RunFolder
print(RunFolder(Path(sys.argv[1]), sys.argv[2]).claim("cd34"))
"""


class Heard:
    """A start with a folder of its own, and what its watch tells it."""

    def __init__(self, tmp_path):
        self.bucket = tmp_path / "bucket"
        self.folder = RunFolder(tmp_path / "one", str(self.bucket))
        self.claim = self.folder.claim("ab12")
        self.told = []
        self.watch = ClaimWatch(
            self.folder.claims,
            (self.claim, "ab12"),
            followed=lambda number: self.told.append(("followed", number)),
            overtaken=lambda number: self.told.append(("overtaken", number)),
            every_s=0.01,
        )


@pytest.fixture
def heard(tmp_path):
    return Heard(tmp_path)


def test_the_older_of_two_starts_with_nothing_but_a_storage_in_common_hears_of_it(heard, tmp_path):
    """control A16: it noticed at its next checkpoint, which could be hours away, or never."""
    heard.watch.start()
    command = [sys.executable, "-c", OTHER, str(tmp_path / "two"), str(heard.bucket)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert soon(lambda: heard.told) == [("overtaken", int(said))]


def test_another_controller_of_the_same_start_follows_and_takes_nothing_away(heard):
    assert not heard.watch.look()
    heard.folder.claim_again("ab12")
    assert heard.watch.look()
    assert heard.told == [("followed", 2)]


@pytest.mark.parametrize("record", [b"", b'{"format_version": 99}'])
def test_a_newer_claim_that_cannot_be_read_is_somebody_elses(heard, record):
    heard.folder.guarded.put(claim_path(2), record)
    assert heard.watch.look()
    assert heard.told == [("overtaken", 2)]


def test_its_own_claim_is_not_read_again(heard):
    heard.folder.guarded.put(claim_path(1), b"damaged by now")
    assert not heard.watch.look()


def test_a_run_that_somebody_else_has_ends_though_nothing_is_trained():
    machine = Controller(options())
    machine.handle(ev.RunStarted(), 1.0)
    lost = ev.CommitFailed(generation=0, step=0, error="start 2 has taken over", fenced=True)
    [end] = [one for one in machine.handle(lost, 2.0) if isinstance(one, End)]
    assert (end.status, end.reason) == ("failed", "start 2 has taken over")
