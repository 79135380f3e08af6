"""A run is touched by nobody else as long as its controller may be alive, wherever it is."""

import os
import subprocess
import time
from dataclasses import replace

import pytest
from control_values import options
from test_actors_run_folder import CONTACT

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.liveness import can_be_there, last_word_s, may_live, this_machine
from remesh.actors.serving.status_server import StatusServer
from remesh.orchestrator.user_errors import UserError

LEASE_S = CONTACT.lease_s


@pytest.fixture
def run(tmp_path):
    """The folder of a run whose controller, somewhere else, has just given a word."""
    folder = RunFolder(tmp_path / "run")
    JournalWriter(folder.path, 1, options())
    folder.publish(CONTACT)
    return folder


def age(folder, seconds):
    moment = time.time() - seconds
    for path in (folder.path / "run.json", folder.path / "journal" / "000001.jsonl"):
        os.utime(path, (moment, moment))


@pytest.mark.parametrize(
    ("word_age_s", "process", "alive"),
    [
        (0.0, None, True),
        (LEASE_S - 0.1, None, True),
        (LEASE_S, None, False),
        (0.0, True, True),
        (LEASE_S, True, False),
        (0.0, False, False),
    ],
)
def test_who_cannot_be_reached_may_live_until_its_word_is_old(word_age_s, process, alive):
    """user 1b"""
    assert may_live(CONTACT, word_age_s=word_age_s, process=process) is alive


def test_a_process_tells_on_its_own_machine_only():
    """user 1b: another machine, or another container, has other processes with its pid."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    here = replace(CONTACT, machine=this_machine(), pid=os.getpid())
    assert can_be_there(here) is True
    assert can_be_there(replace(here, pid=ended.pid)) is False
    assert can_be_there(replace(here, machine="another pid:[1]")) is None


def test_the_newest_sign_in_the_folder_is_the_last_word(run):
    """user 1b: a line of the journal, or a beat."""
    contact, journal = run.path / "run.json", run.path / "journal" / "000001.jsonl"
    os.utime(contact, (10, 10))
    os.utime(journal, (20, 20))
    assert last_word_s(run.path) == 20
    run.beat()
    assert last_word_s(run.path) == contact.stat().st_mtime
    assert contact.stat().st_mtime_ns != 10 * 10**9


def test_a_pipe_in_the_place_of_a_journal_is_no_word_and_nobody_waits_at_it(tmp_path):
    (tmp_path / "journal").mkdir()
    os.mkfifo(tmp_path / "journal" / "000001.jsonl")
    assert last_word_s(tmp_path) == 0.0


def test_a_run_whose_word_is_young_is_in_use(run):
    """user 1b"""
    with pytest.raises(UserError, match=r"by run ab12: its last word came \d s ago, and it"):
        run.check_free(fresh=True, say=pytest.fail)
    with pytest.raises(UserError, match="without one for 20 s it is gone"):
        run.check_free()


def test_a_run_whose_word_is_old_is_free(run):
    """user 1b"""
    age(run, LEASE_S + 1)
    run.check_free(fresh=True)
    run.check_free()


def test_a_run_whose_controller_ended_here_is_free_at_once(run):
    """user 1b: nobody waits after a kill -9 of the command."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    run.publish(replace(CONTACT, machine=this_machine(), pid=ended.pid))
    run.check_free(fresh=True)


def test_a_run_that_is_taken_up_elsewhere_waits_for_the_lease(run):
    """user 1b: a head that was started anew is no reason to give up, nor to come too early."""
    told, waits = [], []

    def wait(seconds):
        waits.append(seconds)
        age(run, len(waits) * LEASE_S / 2)

    run.check_free(say=told.append, wait=wait)
    assert len(waits) == 2
    (text,) = told
    assert "waiting until it must be gone" in text


def test_a_run_that_gives_another_word_meanwhile_is_alive(run):
    """user 1b"""
    age(run, 5)
    with pytest.raises(UserError, match="cannot be reached from here"):
        run.check_free(say=lambda _: None, wait=lambda _: run.beat())


def test_a_controller_that_answers_is_alive_however_old_its_word_is(run):
    """user 1b"""
    server = StatusServer({"/status": lambda: {"id": CONTACT.run, "phase": "running"}}, "secret")
    run.publish(replace(CONTACT, host=server.host, port=server.port))
    age(run, 1000)
    with pytest.raises(UserError, match="which is alive"):
        run.check_free(fresh=True)
    server.close()
