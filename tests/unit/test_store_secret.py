"""A store is its generation's alone: who does not know the secret reads and writes nothing."""

import socket
import struct
import threading
from contextlib import suppress

import pytest
from waiting import NEVER_S, PATIENCE_S, soon

from remesh.parallel.groups.store import StoreClient, StoreServer

HOST = "127.0.0.1"
SET, GET = 1, 2


@pytest.fixture
def server():
    opened = StoreServer.open(HOST)
    yield opened
    opened.close()


def connect(server, **changed):
    known = {"secret": server.secret, "prefix": "g", "timeout_s": PATIENCE_S, **changed}
    return StoreClient.connect(HOST, server.port, **known)


def frame(kind, key, value=b""):
    return struct.pack("!BII", kind, len(key), len(value)) + key + value


def test_a_stranger_sets_nothing(server):
    """security A2: he would send a rank to his own address."""
    with socket.create_connection((HOST, server.port), timeout=PATIENCE_S) as stranger:
        stranger.sendall(frame(SET, b"g/key", b"his") + bytes(64))
        with suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    client = connect(server)
    client._connection.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.get("key")


def test_the_secret_of_another_generation_opens_nothing(server):
    """security A2"""
    other = StoreServer.open(HOST)
    assert other.secret != server.secret
    other.close()
    with pytest.raises(ConnectionError, match="secret"):
        connect(server, secret=other.secret)


def test_what_was_heard_once_opens_nothing_again(server):
    """security A2: the store's question is another each time."""
    answers = []

    def listen(listener):
        for _ in range(2):
            near, _ = listener.accept()
            far = socket.create_connection((HOST, server.port), timeout=PATIENCE_S)
            near.sendall(far.recv(4096))
            answers.append(answers[0] if answers else near.recv(4096))
            far.sendall(answers[-1])
            near.sendall(far.recv(4096))
            near.close()
            far.close()

    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=listen, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        known = {"secret": server.secret, "prefix": "g", "timeout_s": PATIENCE_S}
        StoreClient.connect(HOST, port, **known).close()
        with pytest.raises(ConnectionError):
            StoreClient.connect(HOST, port, **known)
    assert server.secret not in answers[0]


def test_one_who_is_no_store_is_not_believed():
    """security A2"""
    with socket.create_server((HOST, 0)) as listener:

        def lie():
            with suppress(OSError):
                stranger, _ = listener.accept()
                stranger.sendall(bytes(32))
                stranger.recv(4096)
                stranger.sendall(bytes(32) + frame(SET, b"", b""))

        threading.Thread(target=lie, daemon=True).start()
        with pytest.raises(ConnectionError, match="secret"):
            StoreClient.connect(
                HOST, listener.getsockname()[1], secret=b"s" * 32, prefix="g", timeout_s=PATIENCE_S
            )


def test_a_rank_that_asks_and_does_not_read_blocks_nobody(server):
    """security A2: 40 answers of 900 KB that nobody takes."""
    greedy = connect(server)
    greedy.set("key", b"x" * 900_000)
    requests = 40 * frame(GET, b"g/key")
    greedy._connection.sendall(requests)
    other = connect(server)
    other.set("k", b"v")
    assert other.get("k") == b"v"
    before = threading.active_count()
    server.close()
    assert soon(lambda: threading.active_count() < before)


def narrow(client, room_bytes):
    """Has little room for what it does not read."""
    client._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
    return client


def test_one_who_stops_in_the_middle_is_dropped_and_the_others_are_served():
    """security A2: of an answer, or of a request."""
    server = StoreServer.open(HOST, limit_s=NEVER_S)
    service = server._service
    value = bytes(1_000_000)
    other, deaf, mute = connect(server), narrow(connect(server), 4096), connect(server)
    other.set("key", value)
    for client in service._clients:  # else the kernel takes it all
        client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    service._limit_s = 0.2  # for these two
    deaf._connection.sendall(frame(GET, b"g/key"))
    mute._connection.sendall(frame(SET, b"g/key", value)[:1000])
    assert soon(lambda: len(service._due_s) == 2 or len(service._clients) == 1)
    service._limit_s = NEVER_S
    assert other.get("key") == value
    assert mute._connection.recv(1) == b""
    assert soon(lambda: len(service._clients) == 1)
    server.close()


def test_an_answer_larger_than_what_is_in_flight_arrives_whole(server):
    one, two = connect(server), narrow(connect(server), 100_000)
    value = bytes(range(256)) * 4000
    one.set("key", value)
    assert two.get("key") == value


def test_a_store_keeps_no_more_than_its_bound():
    """security A2: 300 MB in the controller's process, before."""
    server = StoreServer.open(HOST, most_bytes=3 << 20)
    client = connect(server)
    client.set("a", bytes(900_000))
    client.set("a", bytes(900_000))
    client.set("b", bytes(900_000))
    client.set("c", bytes(900_000))
    with pytest.raises(ConnectionError, match=r"more than 3145728 bytes"):
        client.set("d", bytes(900_000))
    assert connect(server).get("c") == bytes(900_000)
    server.close()


def test_a_store_listens_on_an_address_of_either_kind():
    """parallel A11"""
    for host in ("::1", "127.1", "localhost"):
        server = StoreServer.open(host)
        client = StoreClient.connect(
            host, server.port, secret=server.secret, prefix="g", timeout_s=PATIENCE_S
        )
        client.set("k", b"v")
        assert client.get("k") == b"v"
        server.close()
