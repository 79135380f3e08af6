"""Those who have proven themselves at the door, on their way to the one thread that serves them."""

import selectors
import socket
from collections import deque
from collections.abc import Iterator

from remesh.parallel.doors.keyed_hello import HelloVisitor

_RINGS_AT_ONCE = 1 << 16


class Arrivals:
    """A bell among what the serving thread selects on, rung for each arrival and at the end."""

    def __init__(self) -> None:
        self._bell, self.rung = socket.socketpair()
        self._arrived: deque[socket.socket] = deque()

    def welcome(self, connection: socket.socket, visitor: HelloVisitor) -> None:
        """From any thread. Raises: OSError if the other side is gone, or this one has closed."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        visitor.welcome(connection)
        self._arrived.append(connection)
        self._bell.send(b"\0")

    def close(self) -> None:
        """The serving thread is to end. From any thread; repeatable."""
        self._bell.close()

    def register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self.rung, selectors.EVENT_READ)

    def go_on(self) -> bool:
        """After the bell: False once it was closed."""
        return bool(self.rung.recv(_RINGS_AT_ONCE))

    def taken(self) -> Iterator[socket.socket]:
        """Each that has come, once."""
        while self._arrived:
            yield self._arrived.popleft()

    def end(self) -> None:
        """By the serving thread, as the last thing."""
        for connection in self.taken():
            connection.close()
        self.rung.close()
        self._bell.close()
