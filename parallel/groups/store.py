"""A small key-value store at which the ranks of a new group find each other.

torch's own TCPStore looks up the host name of the address it connects to, every time, only to have
it at hand for a log line: where DNS does not answer, each new group costs five seconds and more.
This one resolves nothing, listens on one address instead of all, and needs no torch, so that it
can live in the controller's process. It must not live in a rank: a store dies with its host.

It is one generation's: each side proves first that it knows the store's secret. Then a request is
(kind, key, value), a reply is a value; a GET waits until the key is set. The numbers are small: a
forming rank makes a few requests for each of its peers.
"""

import secrets
import socket
from contextlib import suppress

from remesh.parallel.doors.doorstep import Doorstep
from remesh.parallel.doors.keyed_hello import SECRET_BYTES, HelloVisitor, greet
from remesh.parallel.groups.store_service import GET, HEADER, REFUSED, SET, StoreService, frame

LEAST_BYTES = 16 << 20
_PAIR_BYTES = 1 << 10  # what a rank leaves for each other one, in all groups together


class StoreServer:
    """A store on a port of its own until `close`, for those who know `secret`.

    Two threads serve it: one those who have proven themselves, one those who are still to.
    """

    def __init__(self, secret: bytes, service: StoreService, door: Doorstep[HelloVisitor]) -> None:
        self.secret = secret
        self.port = door.port
        self._service = service
        self._door = door

    @staticmethod
    def open(host: str, *, most_bytes: int = LEAST_BYTES, limit_s: float = 5.0) -> "StoreServer":
        """`most_bytes` bounds the keys and values together, `limit_s` each hello and request."""
        secret = secrets.token_bytes(SECRET_BYTES)
        service = StoreService(most_bytes=most_bytes, limit_s=limit_s)
        door = Doorstep.open(
            (host, 0), lambda: HelloVisitor(secret), service.welcome, limit_s=limit_s
        )
        service.start()
        return StoreServer(secret, service, door)

    def close(self) -> None:
        """Ends the threads and every connection. Repeatable; nobody can hold it up."""
        self._door.close()
        self._service.close()


class StoreClient:
    """A connection to a store; its keys get a prefix.

    For one thread, but that `close` may come from any and frees a `get` that waits.
    """

    def __init__(self, connection: socket.socket, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix

    @staticmethod
    def connect(
        host: str, port: int, *, secret: bytes, prefix: str, timeout_s: float
    ) -> "StoreClient":
        """Raises: OSError if the store is not there; as do all methods once it is gone.

        StrangerError if it does not know the secret, or another one.
        """
        connection = socket.create_connection((host, port), timeout=timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greet(connection, secret)
        except OSError:
            connection.close()
            raise
        return StoreClient(connection, prefix)

    def set(self, key: str, value: bytes) -> None:
        """Raises: ConnectionError if the store has no room for it."""
        self._request(SET, key, value)

    def get(self, key: str) -> bytes:
        """The value of `key`, as soon as somebody has set it.

        Raises: TimeoutError after the connection's timeout.
        """
        return self._request(GET, key, b"")

    def close(self) -> None:
        with suppress(OSError):  # ended already
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _request(self, kind: int, key: str, value: bytes) -> bytes:
        name = f"{self._prefix}/{key}".encode()
        self._connection.sendall(frame(kind, name, value))
        answered, _, length = HEADER.unpack(self._receive(HEADER.size))
        answer = self._receive(length)
        if answered == REFUSED:
            raise ConnectionRefusedError(answer.decode())
        return answer

    def _receive(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            piece = self._connection.recv(length - len(data))
            if not piece:
                raise ConnectionError("the store is gone")
            data += piece
        return bytes(data)


def room_bytes(num_ranks: int) -> int:
    """What a store has to have room for, so that so many ranks can form all of their groups."""
    return LEAST_BYTES + _PAIR_BYTES * num_ranks**2
