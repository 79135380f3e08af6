import socket
import threading

import pytest
from waiting import NEVER_S, PATIENCE_S

from remesh.parallel.groups.store import StoreClient, StoreServer

HOST = "127.0.0.1"


@pytest.fixture
def server():
    opened = StoreServer.open(HOST)
    yield opened
    opened.close()


def connect(server, prefix="g", timeout_s=PATIENCE_S):
    return StoreClient.connect(
        HOST, server.port, secret=server.secret, prefix=prefix, timeout_s=timeout_s
    )


def test_a_value_is_seen_by_all_who_have_the_prefix(server):
    one, two, other = connect(server), connect(server), connect(server, "h")
    one.set("key", b"value \x00\xff")
    assert two.get("key") == one.get("key") == b"value \x00\xff"
    one.set("key", b"")
    assert two.get("key") == b""
    other._connection.settimeout(0.05)
    with pytest.raises(TimeoutError):
        other.get("key")


def test_get_waits_for_set(server):
    one, two = connect(server), connect(server)
    timer = threading.Timer(0.05, one.set, ["late", b"x" * 100_000])
    timer.start()
    assert two.get("late") == b"x" * 100_000
    timer.join()


def test_close_frees_a_waiting_get(server):
    client = connect(server, timeout_s=NEVER_S)
    threading.Timer(0.05, client.close).start()
    with pytest.raises(OSError, match=r"."):
        client.get("never")


def test_one_who_went_away_while_waiting_harms_nobody(server):
    gone, one, two = connect(server), connect(server), connect(server)
    gone._connection.sendall(b"\x02\x00\x00\x00\x03\x00\x00\x00\x00g/k")
    gone.close()
    one.set("k", b"v")
    assert two.get("k") == b"v"


def test_a_stranger_is_dropped_and_the_store_goes_on(server):
    with socket.create_connection((HOST, server.port), timeout=PATIENCE_S) as stranger:
        stranger.recv(100)  # what it is asked
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 50)
        with pytest.raises(ConnectionResetError):
            stranger.recv(1)
    client = connect(server)
    client.set("k", b"v")
    assert client.get("k") == b"v"


def test_requests_may_come_in_pieces(server):
    slow = connect(server)
    for byte in b"\x01\x00\x00\x00\x03\x00\x00\x00\x02g/kvw":
        slow._connection.sendall(bytes([byte]))
    assert len(slow._connection.recv(100)) == 9
    assert connect(server).get("k") == b"vw"


def test_the_server_listens_on_its_own_host_only_and_stops_when_closed():
    server = StoreServer.open("127.0.0.7")
    client = StoreClient.connect(
        "127.0.0.7", server.port, secret=server.secret, prefix="g", timeout_s=PATIENCE_S
    )
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, server.port), timeout=PATIENCE_S)
    server.close()
    server.close()
    with pytest.raises(OSError, match=r"."):
        client.set("k", b"v")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.7", server.port), timeout=PATIENCE_S)
