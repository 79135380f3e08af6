"""Odd requests to the status server: each gets one short answer, and none a traceback."""

import http.client
import random
import socket
import threading

import pytest
from waiting import PATIENCE_S

from remesh.actors.serving.status_server import Page, StatusServer
from remesh.actors.serving.whole_request import Reply, RequestVisitor, replied
from remesh.orchestrator.user_errors import UserError

TOKEN = "0123456789abcdef"
PAGE = Page(content_type="text/plain; version=0.0.4; charset=utf-8", body=b"remesh_step 7\n")


def refuse(_wish):
    raise UserError("no")


def break_down():
    raise LookupError("a fault of ours")


@pytest.fixture
def server():
    answers = {"/metrics": lambda: PAGE, "/broken": break_down}
    opened = StatusServer(answers, TOKEN, actions={"/scale": refuse})
    yield opened
    opened.close()


def asked(server, method, path, **headers):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers={"Authorization": f"Bearer {TOKEN}", **named})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


@pytest.mark.parametrize(
    "length",
    [pytest.param("9" * 4501), "-1", "1e3", "0x10", "\u0663", "65537"],
)
def test_a_length_that_is_none_is_refused(server, capfd, length):
    """security A4: 4,501 digits were a traceback and no answer."""
    code, body = asked(server, "POST", "/scale", Content_Length=length.encode())
    assert (code, body) == (400, b"expected a JSON object of at most 65536 bytes")
    assert capfd.readouterr() == ("", "")


def test_a_head_request_is_answered_without_a_body(server):
    """security A4, inputs C4"""
    assert asked(server, "HEAD", "/metrics") == (200, b"")
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as plain:
        plain.sendall(f"HEAD /metrics HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        told = b""
        while piece := plain.recv(4096):
            told += piece
    assert told.startswith(b"HTTP/1.0 200 ")
    assert told.endswith(b"\r\n\r\n")
    assert asked(server, "GET", "/metrics") == (200, PAGE.body)
    assert asked(server, "HEAD", "/none")[0] == 404
    assert asked(server, "PUT", "/metrics")[0] == 501


def test_a_page_of_another_site_is_not_served_under_its_name(server):
    """security A4: a name that a site points at this address (DNS rebinding)."""
    for host in ("evil.example", "evil.example:9750", "localhost.evil.example", "1.2.3.4.evil.io"):
        code, body = asked(server, "GET", "/metrics", Host=host)
        assert code == 421
        assert b"remesh_step" not in body
    known = ("127.0.0.1", "10.0.0.7:9750", "[::1]:9750", "localhost:9750", "LOCALHOST", "head",
             "remesh-metrics.default.svc:9750", "host.cluster.local")  # fmt: skip
    for host in known:
        assert asked(server, "GET", "/metrics", Host=host) == (200, PAGE.body)


def test_a_name_that_the_job_gives_is_known():
    """security A4: a site's own name of the node, by which its Prometheus asks."""
    opened = StatusServer({"/metrics": lambda: PAGE}, None, names=("head.example.org",))
    assert asked(opened, "GET", "/metrics", Host="Head.example.org:9750") == (200, PAGE.body)
    assert asked(opened, "GET", "/metrics", Host="example.org")[0] == 421
    opened.close()


def test_a_head_without_end_is_cut(server):
    """security A4"""
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        asked(server, "GET", "/metrics", X="x" * 70_000)
    assert asked(server, "GET", "/metrics")[0] == 200


def test_a_fault_of_ours_is_told_and_logged(server, caplog):
    assert asked(server, "GET", "/broken")[0] == 500
    assert "a fault of ours" in caplog.text


def test_whatever_is_asked_is_answered():
    """security A4: requests with their parts cut, doubled and replaced."""
    drawn = random.Random(4)
    parts = [b"GET", b"POST", b"PUT", b" ", b"/x", b"HTTP/1.1", b"HTTP/9.9", b"\r\n", b"Host:",
             b"[:", b"a:1", b"Content-Length:", b"7", b"-7", b"Transfer-Encoding: chunked",
             b"\xff", b"\0", b"Expect: 100-continue"]  # fmt: skip
    for _ in range(400):
        request = b"".join(drawn.choices(parts, k=drawn.randrange(12))) + b"\r\n\r\n"
        visitor = RequestVisitor()
        if visitor.hear(bytearray(request)):
            replied(visitor.heard, lambda _: Reply(body=b"x"))


def test_it_takes_many_at_once(server):
    """security A4: the backlog was five."""
    codes = []
    threads = [
        threading.Thread(target=lambda: codes.append(asked(server, "GET", "/metrics")[0]))
        for _ in range(60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200] * 60


def test_metrics_are_served_on_an_address_of_the_other_kind():
    """parallel A11"""
    opened = StatusServer({"/metrics": lambda: PAGE}, None, host="::1")
    assert asked(opened, "GET", "/metrics") == (200, PAGE.body)
    opened.close()
