"""A real S3 server on loopback, and a line to it that can be cut."""

import contextlib
import http.client
import random
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field

from waiting import soon

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)


def free_port():
    """None of those that the kernel hands out: another process could have it before the server."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind((HOST, port))
            return port
    raise AssertionError(f"no free port in {PORTS}")


@contextlib.contextmanager
def s3_server():
    """The port of a server of its own process, which ends with the block."""
    port = free_port()
    command = [sys.executable, "-c", "import sys; from moto.server import main; main(sys.argv[1:])"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([*command, "-H", HOST, "-p", str(port)], **quiet)
    try:
        _wait_until_it_listens(server, port)
        yield port
    finally:
        server.terminate()
        server.wait()


def _wait_until_it_listens(server, port):
    def listens():
        assert server.poll() is None, "the S3 server has ended"
        with contextlib.suppress(OSError):
            socket.create_connection((HOST, port), 1).close()
            return True

    assert soon(listens), "the S3 server does not listen"


def make_bucket(port, name):
    connection = http.client.HTTPConnection(HOST, port)
    connection.request("PUT", f"/{name}")
    assert connection.getresponse().status == 200
    connection.close()


@dataclass
class Line:
    """Passes connections on to the server; what becomes of the next ones is in `faults`.

    "cut" ends one at once, "mute" hands the request over and ends instead of the answer, "hang"
    never says a word.
    """

    port: int
    faults: list = field(default_factory=list)
    num_connections: int = 0

    def __enter__(self):
        self._listener = socket.create_server((HOST, 0))
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error):
        for one in [self._listener, *self._open]:
            one.close()

    @property
    def own_port(self):
        return self._listener.getsockname()[1]

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                self.num_connections += 1
                fault = self.faults.pop(0) if self.faults else None
                threading.Thread(target=self._serve, args=(client, fault), daemon=True).start()

    def _serve(self, client, fault):
        if fault == "cut":
            client.close()
            return
        if fault == "hang":
            return
        server = socket.create_connection((HOST, self.port))
        self._open.append(server)
        threading.Thread(target=_copy, args=(client, server), daemon=True).start()
        _copy(server, client, until=b"HTTP/1.1 2" if fault == "mute" else None)


def _copy(source, target, until=None):
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            if until and until in data:
                break
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR if until else socket.SHUT_WR)
