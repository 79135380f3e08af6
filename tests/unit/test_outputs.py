"""A terminal, a pipe or a disk that takes no more output ends no training, and no command oddly."""

import os
import signal
import sys
from pathlib import Path

import pytest
from control_values import options
from rich.console import Console
from test_cli_drive import Asked, ScriptedRun, ended, running

from remesh.actors.run.journal_files import JournalWriter
from remesh.cli.drive import exit_code
from remesh.cli.interrupts import Interrupts
from remesh.cli.main import main
from remesh.cli.progress import open_display
from remesh.cli.run_command import follow


@pytest.fixture
def run_dir(tmp_path):
    writer = JournalWriter(tmp_path / "run", 1, options())
    for number in range(2000):
        writer.announcement(f"sentence {number}", 1.0)
    return tmp_path / "run"


@pytest.fixture
def full():
    with Path("/dev/full").open("w") as stream:
        yield stream
        _forget(stream)


@pytest.fixture
def unread():
    """A pipe whose reader has gone, as that of `| head`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        yield stream
        _forget(stream)


def _forget(stream):
    """What is still in its buffer, so that it can be closed."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


@pytest.mark.xfail(strict=True, reason="user 4b")
def test_a_lost_terminal_asks_for_a_saved_end():
    """user 4b, inputs B2"""
    before = signal.getsignal(signal.SIGHUP)
    try:
        with Interrupts() as wish:
            handler = signal.getsignal(signal.SIGHUP)
            assert callable(handler)
            handler(signal.SIGHUP, None)
            assert wish.signal_number == signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)
    assert exit_code(ended("stopped"), signal.SIGHUP) == 129


@pytest.mark.parametrize("broken", ["unread", "full"])
@pytest.mark.xfail(strict=True, reason="user 4b", raises=(SystemExit, OSError))
def test_a_run_whose_output_nobody_takes_trains_on_and_has_its_own_code(
    broken, request, monkeypatch
):
    """user 4b, user 20, inputs B2"""
    monkeypatch.setattr(sys, "stdout", request.getfixturevalue(broken))
    run = ScriptedRun(running(10, "a sentence " * 5000), running(20, "another"), ended("finished"))
    assert follow(run, open_display(Console()), Asked(), None) == 0
    assert run.polls == 3


@pytest.mark.parametrize("words", [[], ["--json"]])
@pytest.mark.xfail(strict=True, reason="user 20")
def test_a_command_whose_reader_has_gone_ends_quietly_as_cat_does(
    run_dir, unread, capsys, words, monkeypatch
):
    """user 20, inputs B2"""
    monkeypatch.setattr(sys, "stdout", unread)
    assert main(["events", str(run_dir), *words]) == 141
    assert capsys.readouterr().err == ""
    unread.flush()  # as Python does at its end, which would make 120 of the exit code


@pytest.mark.parametrize("command", ["events", "status"])
@pytest.mark.xfail(strict=True, reason="user 20")
def test_a_command_whose_output_finds_no_space_says_so(run_dir, full, capsys, command, monkeypatch):
    """user 20"""
    monkeypatch.setattr(sys, "stdout", full)
    assert main([command, str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("remesh: standard output cannot be written: No space left on device")
    assert error.count("\n") == 1
    full.flush()
