"""The store's side: values, and the connections of those who have proven that they may use them.

One thread, which waits for nobody: what a client does not take stays in a buffer of its own, and
it is heard again once that is empty. A client asks one thing at a time; one that asks for more
before it has its answer, or stops in the middle of a request or of an answer, is dropped.
"""

import selectors
import socket
import struct
import time
from contextlib import suppress

from remesh.parallel.doors.arrivals import Arrivals
from remesh.parallel.doors.keyed_hello import HelloVisitor
from remesh.parallel.threads import heard_thread

HEADER = struct.Struct("!BII")
SET, GET, REFUSED = 1, 2, 3
MAX_BYTES = 1 << 20
_RECEIVE_BYTES = 1 << 16
_LOOK_S = 0.1
_CLOSE_S = 2.0


class _Client:
    """A connection: what it has said so far, and what it has not taken yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.unsent = bytearray()
        self.waits_for: bytes | None = None


class StoreService:
    """Served by one thread from `start` to `close`."""

    def __init__(self, *, most_bytes: int, limit_s: float) -> None:
        self._most_bytes = most_bytes
        self._limit_s = limit_s
        self._arrivals = Arrivals()
        self._selector = selectors.DefaultSelector()
        self._values: dict[bytes, bytes] = {}
        self._held_bytes = 0
        self._waiting: dict[bytes, list[_Client]] = {}
        self._clients: set[_Client] = set()
        self._due_s: dict[_Client, float] = {}
        self._thread = heard_thread(self._serve, name="store")

    def start(self) -> None:
        self._thread.start()

    def welcome(self, connection: socket.socket, visitor: HelloVisitor) -> None:
        """Serve one that has proven itself. From any thread."""
        self._arrivals.welcome(connection, visitor)

    def close(self) -> None:
        """Ends the thread and every connection. Repeatable."""
        self._arrivals.close()
        self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        self._arrivals.register(self._selector)
        try:
            while self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        """Whether to go on."""
        for key, events in self._selector.select(_LOOK_S if self._due_s else None):
            if key.fileobj is self._arrivals.rung:
                if not self._arrivals.go_on():
                    return False
                self._take_in()
            elif key.data in self._clients:
                self._attend(key.data, events)
        now_s = time.monotonic()
        for client in [client for client, due_s in self._due_s.items() if due_s < now_s]:
            self._drop(client)
        return True

    def _take_in(self) -> None:
        for connection in self._arrivals.taken():
            connection.setblocking(False)
            client = _Client(connection)
            self._clients.add(client)
            self._selector.register(client.connection, selectors.EVENT_READ, client)

    def _attend(self, client: _Client, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(client)
            else:
                self._read(client)
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        """Raises: OSError if it is gone or does not keep to the protocol."""
        piece = client.connection.recv(_RECEIVE_BYTES)
        if not piece or client.waits_for is not None:
            raise ConnectionError("gone, or it asks before it has its answer")
        client.received += piece
        self._answer_whole(client)
        self._note(client)

    def _answer_whole(self, client: _Client) -> None:
        """Answer the request, if all of it is there. Raises: OSError as `_read`."""
        data = client.received
        if len(data) < HEADER.size:
            return
        kind, key_length, length = HEADER.unpack_from(data)
        if kind not in (SET, GET) or key_length + length > MAX_BYTES:
            raise ConnectionError("no request")
        start, stop = HEADER.size + key_length, HEADER.size + key_length + length
        if len(data) > stop:
            raise ConnectionError("it asks before it has its answer")
        if len(data) == stop:
            key, value = bytes(data[HEADER.size : start]), bytes(data[start:stop])
            data.clear()
            self._answer(client, kind, key, value)

    def _answer(self, client: _Client, kind: int, key: bytes, value: bytes) -> None:
        if kind == SET:
            self._set(client, key, value)
        elif key in self._values:
            self._send(client, GET, self._values[key])
        else:
            client.waits_for = key
            self._waiting.setdefault(key, []).append(client)

    def _set(self, client: _Client, key: bytes, value: bytes) -> None:
        more = len(key) + len(value)
        if key in self._values:
            more = len(value) - len(self._values[key])
        if self._held_bytes + more > self._most_bytes:
            text = f"the store would hold more than {self._most_bytes} bytes"
            self._send(client, REFUSED, text.encode())
            return
        self._held_bytes += more
        self._values[key] = value
        self._send(client, SET, b"")
        for waiting in self._waiting.pop(key, ()):
            waiting.waits_for = None
            with suppress(OSError):  # gone while it waited: its own turn will show it
                self._send(waiting, GET, value)

    def _send(self, client: _Client, kind: int, value: bytes) -> None:
        client.unsent += frame(kind, b"", value)
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        with suppress(BlockingIOError):
            del client.unsent[: client.connection.send(client.unsent)]
        events = selectors.EVENT_WRITE if client.unsent else selectors.EVENT_READ
        if self._selector.get_key(client.connection).events != events:
            self._selector.modify(client.connection, events, client)
        self._note(client)

    def _note(self, client: _Client) -> None:
        """One that is in the middle of something has to get on with it."""
        if not client.received and not client.unsent:
            self._due_s.pop(client, None)
        else:
            self._due_s.setdefault(client, time.monotonic() + self._limit_s)

    def _drop(self, client: _Client) -> None:
        self._selector.unregister(client.connection)
        self._clients.discard(client)
        self._due_s.pop(client, None)
        if client.waits_for is not None:
            waiting = self._waiting[client.waits_for]
            waiting.remove(client)
            if not waiting:
                del self._waiting[client.waits_for]
        client.connection.close()

    def _end(self) -> None:
        for client in list(self._clients):
            self._drop(client)
        self._arrivals.end()
        self._selector.close()


def frame(kind: int, key: bytes, value: bytes) -> bytes:
    return HEADER.pack(kind, len(key), len(value)) + key + value
