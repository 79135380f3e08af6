"""Strangers at every port of ours: random bytes, slow ones, a thousand silent ones.

The store's is security A2, the status server's security A4, the vault's security A5.

Whatever they do, who belongs there is answered meanwhile, and what they cost is bounded.
"""

import os
import random
import resource
import socket
import threading
from contextlib import suppress

import pytest
from waiting import PATIENCE_S, soon

from remesh.actors.run.contact import Contact, answer_of
from remesh.actors.serving.status_server import StatusServer
from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.slot_reader import reading
from remesh.actors.vault.vault_memory import VaultMemory
from remesh.actors.vault.vault_server import VaultServer
from remesh.actors.vault.wire import VaultError
from remesh.orchestrator.control.words.records import VaultSlot
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.user_errors import UnreachableError
from remesh.parallel.groups.store import StoreClient, StoreServer
from remesh.parallel.plan.cut import held_by
from remesh.parallel.plan.layout import Layout

SLOT = VaultSlot(vault="node", held=held_by(Layout(dp=2), 2, 0), generation=1, step=4)
HOST = "127.0.0.1"
TOKEN = "0123456789abcdef" * 2
MANY = 1000
MOST_WAITING = 550  # of those that have not said yet who they are
FEW_THREADS = 4


class StorePort:
    def __init__(self, _folder, limit_s):
        self.server = StoreServer.open(HOST, limit_s=limit_s)
        self.port = self.server.port
        self.begin = b""

    def answers(self):
        client = StoreClient.connect(
            HOST, self.port, secret=self.server.secret, prefix="g", timeout_s=PATIENCE_S
        )
        client.set("key", b"value")
        return client.get("key") == b"value"


class VaultPort:
    def __init__(self, folder, limit_s):
        timers = Timers(patience_s=limit_s / 10)
        shelf = KeptShelf(VaultMemory(folder))
        self.server = VaultServer.open(HOST, shelf, token=TOKEN, timers=timers)
        self.address = self.server.address
        self.port = int(self.address.rpartition(":")[2])
        self.begin = b""

    def answers(self):
        refused = pytest.raises(VaultError, match="no snapshot of generation 1 at step 4")
        with reading(self.address, TOKEN, SLOT, Timers(patience_s=PATIENCE_S)) as reader, refused:
            reader.header()
        return True


class StatusPort:
    def __init__(self, _folder, limit_s):
        answers = {"/status": lambda: {"id": "", "step": 7}}
        self.server = StatusServer(answers, TOKEN, limit_s=limit_s)
        self.port = self.server.port
        self.begin = b"GET /status HTTP/1.1\r\nX: "

    def answers(self):
        who = {"run": "", "address": "", "pid": 1, "started_s": 0.0}
        contact = Contact(host=HOST, port=self.port, token=TOKEN, **who)
        return answer_of(contact, "/status", limit_s=PATIENCE_S) == {"id": "", "step": 7}


PORTS = [
    StorePort,
    VaultPort,
    StatusPort,
]


@pytest.fixture
def opened(tmp_path):
    """Opens a port of a kind; all are closed at the end, and nothing is left of them."""
    before = threading.active_count()
    ports = []

    def open_port(kind, limit_s=PATIENCE_S):
        ports.append(kind(tmp_path / "vault", limit_s))
        return ports[-1]

    yield open_port
    for port in ports:
        port.server.close()
    assert soon(lambda: threading.active_count() <= before), threading.enumerate()


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * MANY)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers, not paths


def dial(port):
    return socket.create_connection((HOST, port), timeout=PATIENCE_S)


def is_cut(stranger):
    """Whether the server has ended this connection; what it said before is thrown away."""
    try:
        while stranger.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def answers_in_time(port):
    """Whoever belongs there has no longer than others have to say so: it comes again."""
    with suppress(OSError, VaultError, UnreachableError):
        return port.answers()
    return False


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("kind", PORTS)
def test_a_thousand_silent_connections_hold_up_nobody(opened, kind):
    port = opened(kind)
    threads, descriptors = threading.active_count(), num_descriptors()
    silent = [dial(port.port) for _ in range(MANY)]
    assert port.answers()
    assert threading.active_count() <= threads + FEW_THREADS
    assert num_descriptors() <= descriptors + MANY + MOST_WAITING
    for stranger in silent:
        stranger.close()
    assert port.answers()


@pytest.mark.parametrize("kind", PORTS)
def test_random_bytes_end_only_the_connection_that_says_them(opened, capfd, kind):
    port = opened(kind)
    drawn = random.Random(9)
    threads = threading.active_count()
    for _ in range(60):
        with dial(port.port) as stranger:
            with suppress(OSError):  # it may be cut in the middle
                stranger.sendall(drawn.randbytes(drawn.choice([1, 20, 64, 300, 5000])))
                stranger.shutdown(socket.SHUT_WR)
            assert drawn.random() < 0.5 or is_cut(stranger)
    assert port.answers()
    assert soon(lambda: threading.active_count() <= threads + FEW_THREADS)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", PORTS)
def test_one_who_says_a_byte_now_and_then_is_cut(opened, kind):
    port = opened(kind, limit_s=0.2)
    slow = [dial(port.port) for _ in range(5)]
    for stranger in slow:
        stranger.sendall(port.begin)

    def all_cut():
        for stranger in slow:
            stranger.settimeout(0.001)
            try:
                stranger.sendall(b"x")
            except ConnectionError:
                continue
            if not is_cut(stranger):
                return False
        return True

    assert soon(all_cut)
    assert soon(lambda: answers_in_time(port))


@pytest.mark.parametrize("kind", PORTS)
def test_one_who_hangs_up_says_nothing_in_the_log(opened, capfd, kind):
    """inputs C4"""
    port = opened(kind)
    for text in (b"", b"GET /status HTTP/1.0\r\n\r\n", port.begin):
        stranger = dial(port.port)
        stranger.sendall(text)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        stranger.close()  # by a reset
    assert port.answers()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "kind",
    PORTS,
)
def test_a_port_closes_with_strangers_at_the_door(opened, kind):
    port = opened(kind)
    strangers = [dial(port.port) for _ in range(20)]
    port.server.close()
    assert all(is_cut(stranger) for stranger in strangers)
    with pytest.raises(ConnectionRefusedError):
        dial(port.port)
    port.server.close()
