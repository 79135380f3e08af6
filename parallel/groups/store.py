"""A small key-value store at which the ranks of a new group find each other.

torch's own TCPStore looks up the host name of the address it connects to, every time, only to have
it at hand for a log line: where DNS does not answer, each new group costs five seconds and more.
This one resolves nothing, listens on one address instead of all, and needs no torch, so that it
can live in the controller's process. It must not live in a rank: a store dies with its host.

A request is (kind, key, value), a reply is a value; a GET waits until the key is set. The numbers
are small: a forming rank makes a few requests for each of its peers.
"""

import selectors
import socket
import struct
import threading
from contextlib import suppress

_HEADER = struct.Struct("!BII")
_SET, _GET = 1, 2
_MAX_BYTES = 1 << 20
_RECEIVE_BYTES = 1 << 16


class StoreServer:
    """A store on a port of its own, served by one thread until `close`."""

    def __init__(self, service: "_Service", port: int, waker: socket.socket) -> None:
        self.port = port
        self._waker = waker
        self._thread = threading.Thread(target=service.serve, name="store", daemon=True)

    @staticmethod
    def open(host: str) -> "StoreServer":
        listener = socket.create_server((host, 0), backlog=1024)
        waker, woken = socket.socketpair()
        server = StoreServer(_Service(listener, woken), listener.getsockname()[1], waker)
        server._thread.start()
        return server

    def close(self) -> None:
        """Ends the thread and every connection. Repeatable."""
        self._waker.close()
        self._thread.join()


class StoreClient:
    """A connection to a store; its keys get a prefix.

    For one thread, but that `close` may come from any and frees a `get` that waits.
    """

    def __init__(self, connection: socket.socket, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix

    @staticmethod
    def connect(host: str, port: int, *, prefix: str, timeout_s: float) -> "StoreClient":
        """Raises: OSError if the store is not there; as do all methods once it is gone."""
        connection = socket.create_connection((host, port), timeout=timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return StoreClient(connection, prefix)

    def set(self, key: str, value: bytes) -> None:
        self._request(_SET, key, value)

    def get(self, key: str) -> bytes:
        """The value of `key`, as soon as somebody has set it.

        Raises: TimeoutError after the connection's timeout.
        """
        return self._request(_GET, key, b"")

    def close(self) -> None:
        with suppress(OSError):  # ended already
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _request(self, kind: int, key: str, value: bytes) -> bytes:
        name = f"{self._prefix}/{key}".encode()
        self._connection.sendall(_frame(kind, name, value))
        _, _, length = _HEADER.unpack(self._receive(_HEADER.size))
        return self._receive(length)

    def _receive(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self._connection.recv(length - len(data))
            if not piece:
                raise ConnectionError("the store is gone")
            data += piece
        return data


class _Service:
    """The server's side, all in one thread."""

    def __init__(self, listener: socket.socket, woken: socket.socket) -> None:
        self._listener = listener
        self._woken = woken
        self._selector = selectors.DefaultSelector()
        self._values: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, list[socket.socket]] = {}
        self._received: dict[socket.socket, bytes] = {}

    def serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._end()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # gone again before it was accepted
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            piece = connection.recv(_RECEIVE_BYTES)
            self._received[connection] += piece
            legal = bool(piece) and self._answer_all(connection)
        except OSError:
            legal = False
        if not legal:
            self._drop(connection)

    def _answer_all(self, connection: socket.socket) -> bool:
        """Whether the client keeps to the protocol."""
        while len(self._received[connection]) >= _HEADER.size:
            data = self._received[connection]
            kind, key_length, length = _HEADER.unpack_from(data)
            if kind not in (_SET, _GET) or key_length + length > _MAX_BYTES:
                return False
            start, stop = _HEADER.size + key_length, _HEADER.size + key_length + length
            if len(data) < stop:
                break
            self._received[connection] = data[stop:]
            self._answer(connection, kind, data[_HEADER.size : start], data[start:stop])
        return True

    def _answer(self, connection: socket.socket, kind: int, key: bytes, value: bytes) -> None:
        if kind == _SET:
            self._values[key] = value
            connection.sendall(_frame(_SET, b"", b""))
            for waiting in self._waiting.pop(key, ()):
                with suppress(OSError):  # gone while it waited: its own read will show it
                    waiting.sendall(_frame(_GET, b"", value))
        elif key in self._values:
            connection.sendall(_frame(_GET, b"", self._values[key]))
        else:
            self._waiting.setdefault(key, []).append(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._received[connection]
        for waiting in self._waiting.values():
            if connection in waiting:
                waiting.remove(connection)
        connection.close()

    def _end(self) -> None:
        for connection in (self._listener, self._woken, *self._received):
            connection.close()
        self._selector.close()


def _frame(kind: int, key: bytes, value: bytes) -> bytes:
    return _HEADER.pack(kind, len(key), len(value)) + key + value
