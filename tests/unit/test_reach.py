"""A run asked from elsewhere: it answers, is out of reach, or is gone, and which is said."""

import os
import time
from contextlib import contextmanager

import pytest
from control_values import options

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.contact import Contact
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.liveness import this_network
from remesh.actors.run.status import read_status, tell_run
from remesh.actors.serving.status_server import StatusServer
from remesh.orchestrator.control.words.events import NodeJoined, RunStarted
from remesh.orchestrator.user_errors import UnreachableError, UserError

TOKEN = "0123456789abcdef"
NOWHERE = 9  # the port of discard, at which nobody listens
LEASE_S = 20.0
LONG_AGO_S = 3600.0


def contact(**more):
    known = {"run": "ab12", "host": "127.0.0.1", "port": NOWHERE, "token": TOKEN, "pid": 1}
    where = {"address": f"127.0.0.1:{NOWHERE}", "network": "another", "lease_s": LEASE_S}
    return Contact(**{**known, **where, "started_s": 1.0, **more})


def write_run(path, left=None, *, age_s=0.0):
    """A run that trained, and whose controller spoke so long ago."""
    writer = JournalWriter(path, 1, options())
    writer.event(NodeJoined(node="n", slots=2), 1.0)
    writer.event(RunStarted(), 1.5)
    if left:
        RunFolder(path).publish(left)
    for file in (writer.path, path / "run.json"):
        if file.exists():
            moment_s = time.time() - age_s
            os.utime(file, (moment_s, moment_s))


@contextmanager
def listening(answer):
    """Somebody at a port of loopback."""
    server = StatusServer({"/status": lambda: {"id": "ab12", **answer}}, TOKEN)
    yield server.port
    server.close()


def test_a_run_on_another_machine_is_out_of_reach_and_not_gone(tmp_path):
    """user 3: status called it gone, with code 0, while it trained."""
    write_run(tmp_path, contact(), age_s=3)
    status = read_status(tmp_path)
    assert status["phase"] == "unreachable"
    assert "cannot be reached from here, last word 3 s ago" in status["reason"]
    assert "--address http://HOST:8265" in status["reason"]
    with pytest.raises(UnreachableError, match=r"cannot be reached from here, last word 3 s ago"):
        tell_run(tmp_path, "/scale", {"nodes": 1})


def test_a_run_that_has_long_been_silent_is_gone_from_everywhere(tmp_path):
    """user 3"""
    write_run(tmp_path, contact(), age_s=LONG_AGO_S)
    assert read_status(tmp_path)["phase"] == "interrupted"
    with pytest.raises(UserError, match="no run is alive here"):
        tell_run(tmp_path, "/scale", {"nodes": 1})


def test_where_its_cluster_was_it_is_gone_at_once(tmp_path):
    """user 3: whoever stands on the same loopback sees that nobody is left."""
    ended, lives = tmp_path / "ended", tmp_path / "lives"
    write_run(ended, contact(network=this_network()))
    assert read_status(ended)["phase"] == "interrupted"
    with listening({}) as port:  # its cluster lives: Ray may be about to start it again
        write_run(lives, contact(network=this_network(), address=f"127.0.0.1:{port}"))
        assert read_status(lives)["phase"] == "unreachable"


def test_a_stranger_on_our_own_loopback_does_not_learn_the_token(tmp_path):
    """user 3, security A4: the port belongs to another machine's loopback."""
    with listening({"phase": "running"}) as port:
        write_run(tmp_path, contact(port=port))
        assert read_status(tmp_path)["phase"] == "unreachable"
        write_run(tmp_path, contact(port=port, network=""))
        assert read_status(tmp_path)["phase"] == "running"


def test_a_start_that_has_not_spoken_yet_is_no_dead_run(tmp_path):
    """user 3, user 1b: its claim is there before its first word."""
    write_run(tmp_path, age_s=LONG_AGO_S)
    assert read_status(tmp_path)["phase"] == "interrupted"
    RunFolder(tmp_path).claim("cd34")
    status = read_status(tmp_path)
    assert (status["phase"], "is just being started" in status["reason"]) == ("unreachable", True)


def test_a_live_controller_gives_a_sign_though_nothing_happens(tmp_path):
    """user 3: a run that waits for nodes writes nothing for minutes."""
    write_run(tmp_path, contact(), age_s=LONG_AGO_S)
    assert read_status(tmp_path)["phase"] == "interrupted"
    RunFolder(tmp_path).beat()
    assert read_status(tmp_path)["phase"] == "unreachable"
