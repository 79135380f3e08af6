"""A terminal, a pipe or a disk that takes no more output ends no training, and no command oddly."""

import os
import signal
import sys
from pathlib import Path

import pytest
from control_values import options
from rich.console import Console
from test_cli_drive import Asked, ScriptedRun, ended, running

from remesh.actors.history.journal_writer import JournalWriter
from remesh.cli.driving.drive import exit_code
from remesh.cli.driving.interrupts import Interrupts
from remesh.cli.main import main
from remesh.cli.outputs import go_on_unheard, standard_streams
from remesh.cli.run_command import follow
from remesh.cli.screen.progress import open_display


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


def test_a_lost_terminal_asks_for_a_saved_end():
    """user 4b, inputs B2"""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with Interrupts() as wish:
            handler = signal.getsignal(signal.SIGHUP)
            assert callable(handler)
            handler(signal.SIGHUP, None)
            assert wish.signal_number == signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)
    assert exit_code(ended("stopped"), signal.SIGHUP) == 129


def test_who_runs_it_under_nohup_hears_nothing_of_the_terminal():
    """user 4b"""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("broken", ["unread", "full"])
def test_a_run_whose_output_nobody_takes_trains_on_and_has_its_own_code(
    broken, request, monkeypatch
):
    """user 4b, user 20, inputs B2"""
    monkeypatch.setattr(sys, "stdout", request.getfixturevalue(broken))
    run = ScriptedRun(running(10, "a sentence " * 5000), running(20, "another"), ended("finished"))
    with standard_streams() as flush:
        go_on_unheard()
        assert follow(run, open_display(Console()), Asked(), None) == 0
        flush()
    assert run.polls == 3


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_command_whose_reader_has_gone_ends_quietly_as_cat_does(
    run_dir, unread, capsys, words, monkeypatch
):
    """user 20, inputs B2"""
    monkeypatch.setattr(sys, "stdout", unread)
    assert main(["events", str(run_dir), *words]) == 141
    assert capsys.readouterr().err == ""
    unread.flush()  # as Python does at its end, which would make 120 of the exit code


def test_a_reader_that_goes_before_the_last_words_is_no_error_of_python(
    run_dir, unread, capsys, monkeypatch
):
    """user 20: so little stays in the buffer until the end, where Python would exit with 120."""
    monkeypatch.setattr(sys, "stdout", unread)
    assert main(["status", str(run_dir), "--json"]) == 141
    assert capsys.readouterr().err == ""
    unread.flush()


def test_an_error_that_nobody_can_be_told_keeps_its_code(unread, monkeypatch):
    """user 20"""
    monkeypatch.setattr(sys, "stderr", unread)
    assert main(["run", "none.toml"]) == 2
    unread.flush()


def test_a_command_without_any_output_ends_as_ever(run_dir, monkeypatch):
    """user 20: as by `>&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["events", str(run_dir)]) == 0


def test_a_broken_pipe_of_another_kind_is_told(capsys, monkeypatch):
    """user 20: typer ends with 1 and says nothing."""

    def broken(*_):
        raise BrokenPipeError(32, "Broken pipe", "of the supervisor")

    monkeypatch.setattr("remesh.runs.run_dir_of", broken)
    assert main(["status"]) == 3
    assert "of the supervisor" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["events", "status"])
def test_a_command_whose_output_finds_no_space_says_so(run_dir, full, capsys, command, monkeypatch):
    """user 20"""
    monkeypatch.setattr(sys, "stdout", full)
    assert main([command, str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("remesh: standard output cannot be written: No space left on device")
    assert error.count("\n") == 1
    full.flush()
