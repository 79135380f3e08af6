import http.client
import socket
import threading
from dataclasses import replace

import pytest
from control_values import options
from waiting import PATIENCE_S

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.contact import Contact, answer_of, ask
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.liveness import this_network
from remesh.actors.run.status import read_events, read_status
from remesh.actors.serving.status_server import StatusServer
from remesh.orchestrator.control.words.events import NodeJoined, RunStarted
from remesh.orchestrator.user_errors import UnreachableError, UserError

TOKEN = "0123456789abcdef"


@pytest.fixture
def server():
    answer = {"id": "ab12", "phase": "RUNNING", "loss": None}
    opened = StatusServer({"/status": lambda: dict(answer)}, TOKEN)
    yield opened
    opened.close()


@pytest.fixture
def contact(server):
    return Contact(
        run="ab12",
        host=server.host,
        port=server.port,
        token=TOKEN,
        address="127.0.0.1:9",
        pid=1,
        started_s=1.0,
        network=this_network(),
    )


def code_of(server, path, headers):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    connection.request("GET", path, headers=headers)
    code = connection.getresponse().status
    connection.close()
    return code


def test_the_live_controller_answers_whoever_has_the_token(contact):
    assert ask(contact, "/status") == {"id": "ab12", "phase": "RUNNING", "loss": None}


def test_without_the_token_there_is_no_answer_not_even_what_exists(server):
    for path in ("/status", "/none"):
        for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {TOKEN}x"}):
            assert code_of(server, path, headers) == 401
        assert code_of(server, path, {"Authorization": TOKEN}) == 401


def test_an_unknown_path_is_not_found(server, contact):
    assert code_of(server, "/none", {"Authorization": f"Bearer {TOKEN}"}) == 404
    assert ask(contact, "/none") is None


def test_it_listens_on_loopback_only(server):
    assert server.host == "127.0.0.1"
    with socket.socket() as other, pytest.raises(OSError, match="refused"):
        other.connect(("127.0.0.2", server.port))


def test_a_proxy_of_the_environment_is_not_asked(contact, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(contact, "/status")


def test_a_dead_controller_is_noticed_by_its_closed_port(server, contact):
    server.close()
    assert ask(contact, "/status") is None
    with pytest.raises(UnreachableError, match="refused"):
        answer_of(contact, "/status", {})


def test_somebody_else_at_the_port_is_not_taken_for_the_controller(contact):
    def answer(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        assert ask(replace(contact, port=listener.getsockname()[1]), "/status") is None


def test_a_client_that_says_nothing_holds_up_nobody(server, contact):
    with socket.create_connection((server.host, server.port)):
        assert ask(contact, "/status")


def written_run(path):
    writer = JournalWriter(path, 1, options())
    writer.event(NodeJoined(node="n", slots=2), 1.0)
    writer.event(RunStarted(), 1.5)
    writer.announcement("waiting for workers", 1.5)
    return writer


def test_the_status_of_a_dead_run_comes_from_its_journal(tmp_path, server, contact):
    written_run(tmp_path)
    RunFolder(tmp_path).publish(contact)
    assert read_status(tmp_path) == {"phase": "RUNNING", "loss": None}
    server.close()
    status = read_status(tmp_path)
    assert (status["phase"], status["steps"]) == ("interrupted", 10)


def test_events_come_from_all_starts(tmp_path):
    written_run(tmp_path)
    second = JournalWriter(tmp_path, 2, options())
    second.announcement("going on", 3.0)
    assert [entry["text"] for entry in read_events(tmp_path)] == ["waiting for workers", "going on"]


def test_a_folder_without_a_run_is_said_to_be_one(tmp_path):
    for read in (read_status, read_events):
        with pytest.raises(UserError, match="there is no run here"):
            read(tmp_path)
