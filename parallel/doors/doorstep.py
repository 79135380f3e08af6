"""Where connections wait until they have said who they are or what they want.

One thread for all of them, so that a silent one costs a descriptor and no thread. Each has one time
limit for all that it has to say, however it parts it, and so many bytes. There is room for so many;
when it is taken, the one that has waited longest makes room for the next, if it has had a moment:
else a crowd that all means well would push one another out. Who has said it is handed on.
"""

import errno
import resource
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from remesh.parallel.doors.addresses import listen
from remesh.parallel.threads import heard_thread

_SHARE = 4  # of the process's descriptors, one in so many at most
_AGAIN_S = 0.1
_CLOSE_S = 2.0
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Visitor(Protocol):
    """What one connection has to say. It hears `opening` at once."""

    opening: bytes
    most_bytes: int

    def hear(self, received: bytearray) -> bool:
        """Whether that is all. Raises: ConnectionError if it makes no sense."""
        ...


V = TypeVar("V", bound=Visitor)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorRoom:
    """How many may wait at a door; if none is left, one goes that has had a moment to be heard."""

    most: int = 512
    moment_s: float = 0.25


ROOM = DoorRoom()


class Doorstep(Generic[V]):
    """A listener whose connections are handed to `admit`, blocking again, once they are heard.

    `admit` runs in the door's thread, and must not block. Who is not heard within `limit_s` goes;
    there is `room` for so many, or less where the process may have few descriptors.
    """

    def __init__(
        self,
        listener: socket.socket,
        visitor: Callable[[], V],
        admit: Callable[[socket.socket, V], None],
        *,
        limit_s: float,
        room: DoorRoom = ROOM,
    ) -> None:
        self.host, self.port = listener.getsockname()[:2]
        self._waker, woken = socket.socketpair()
        queue = _Queue(listener, woken, visitor, admit, bounds=(limit_s, room))
        self._thread = heard_thread(queue.serve, name="door")

    @staticmethod
    def open(
        place: tuple[str, int],
        visitor: Callable[[], V],
        admit: Callable[[socket.socket, V], None],
        *,
        limit_s: float,
    ) -> "Doorstep[V]":
        """Raises: OSError if the port is taken; 0 is a free one."""
        door = Doorstep(listen(*place), visitor, admit, limit_s=limit_s)
        door.start()
        return door

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the listener and all who wait. Repeatable; it waits for no stranger."""
        self._waker.close()
        self._thread.join(_CLOSE_S)


class _Waiting(Generic[V]):
    """A connection at the door."""

    def __init__(self, connection: socket.socket, visitor: V) -> None:
        self.connection = connection
        self.visitor = visitor
        self.since_s = time.monotonic()
        self.received = bytearray()


class _Queue(Generic[V]):
    """The door's side, all in one thread. Who came first stands first in `_waiting`."""

    def __init__(
        self,
        listener: socket.socket,
        woken: socket.socket,
        visitor: Callable[[], V],
        admit: Callable[[socket.socket, V], None],
        *,
        bounds: tuple[float, DoorRoom],
    ) -> None:
        self._listener = listener
        self._woken = woken
        self._visitor = visitor
        self._admit = admit
        self._limit_s, room = bounds
        self._moment_s = min(room.moment_s, self._limit_s)
        self._most = min(room.most, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE)
        self._selector = selectors.DefaultSelector()
        self._waiting: dict[_Waiting[V], None] = {}
        self._listens = False
        self._closed_until_s = 0.0

    def serve(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            while self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        """Whether to go on."""
        self._open_or_close()
        for key, _ in self._selector.select(self._wait_s()):
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._accept()
            elif key.data in self._waiting:
                self._hear(key.data)
        self._expire()
        return True

    def _open_or_close(self) -> None:
        """Listen while there is room, or can be made; others wait in the kernel."""
        now_s = time.monotonic()
        is_full = len(self._waiting) >= self._most and not self._may_push(now_s)
        wants = not is_full and now_s >= self._closed_until_s
        if wants and not self._listens:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._listens and not wants:
            self._selector.unregister(self._listener)
        self._listens = wants

    def _may_push(self, now_s: float) -> bool:
        first = next(iter(self._waiting))
        return now_s - first.since_s >= self._moment_s

    def _wait_s(self) -> float | None:
        if not self._listens:
            return _AGAIN_S
        if not self._waiting:
            return None
        first = next(iter(self._waiting))
        return max(0.0, first.since_s + self._limit_s - time.monotonic())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:  # else it would be tried again and again, at once
                self._closed_until_s = time.monotonic() + _AGAIN_S
            return
        if len(self._waiting) >= self._most:
            self._drop(next(iter(self._waiting)))
        visitor = self._visitor()
        waiting = _Waiting(connection, visitor)
        try:
            connection.setblocking(False)
            connection.sendall(visitor.opening)
        except OSError:  # gone again
            connection.close()
            return
        self._waiting[waiting] = None
        self._selector.register(connection, selectors.EVENT_READ, waiting)

    def _hear(self, waiting: _Waiting[V]) -> None:
        try:
            piece = waiting.connection.recv(waiting.visitor.most_bytes - len(waiting.received))
            waiting.received += piece
            is_all = waiting.visitor.hear(waiting.received)
        except BlockingIOError:
            return
        except OSError:
            self._drop(waiting)
            return
        if is_all:
            self._hand_on(waiting)
        elif not piece or len(waiting.received) >= waiting.visitor.most_bytes:
            self._drop(waiting)

    def _hand_on(self, waiting: _Waiting[V]) -> None:
        self._selector.unregister(waiting.connection)
        del self._waiting[waiting]
        waiting.connection.setblocking(True)
        try:
            self._admit(waiting.connection, waiting.visitor)
        except OSError:  # gone again
            waiting.connection.close()

    def _expire(self) -> None:
        before_s = time.monotonic() - self._limit_s
        while self._waiting and next(iter(self._waiting)).since_s <= before_s:
            self._drop(next(iter(self._waiting)))

    def _drop(self, waiting: _Waiting[V]) -> None:
        self._selector.unregister(waiting.connection)
        del self._waiting[waiting]
        waiting.connection.close()

    def _end(self) -> None:
        for waiting in list(self._waiting):
            self._drop(waiting)
        for held in (self._listener, self._woken):
            held.close()
        self._selector.close()
