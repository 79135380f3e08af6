"""A socket pair between an agent and a process of its node: whole messages, in order, both ways.

The end of the one process is the end of the line for the other: that is how a rank learns within
milliseconds that its agent is gone. So no third process may keep an end open: the agent closes
that of the process as soon as it is handed over, and a descriptor of ours is inherited by nobody.

The agent waits for nobody: what a process does not take in, as a frozen one does not, is kept until
it does. A process waits for its agent, which is never long.
"""

import pickle
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

_LENGTH = struct.Struct("!Q")
_MOST_AT_ONCE = 1 << 20


class ProcessEnd:
    """The end of a rank or a vault: any thread sends, one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, value: object) -> None:
        """Raises: OSError if the agent is gone."""
        frame = framed(value)
        with self._sending:
            self._end.sendall(frame)

    def receive(self) -> Any:
        """The next message. Raises: EOFError or OSError if the agent is gone."""
        (length,) = _LENGTH.unpack(self._whole(_LENGTH.size))
        return pickle.loads(self._whole(length))  # noqa: S301 - of a process of ours

    def _whole(self, length: int) -> bytearray:
        data = bytearray()
        while len(data) < length:
            news = self._end.recv(min(length - len(data), _MOST_AT_ONCE))
            if not news:
                raise EOFError
            data += news
        return data


class AgentEnd:
    """The end of the agent, for one thread, which never waits."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unsent = bytearray()
        self._unread = bytearray()
        self.is_over = False

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def waits(self) -> bool:
        """Whether there is something that the process has not taken in."""
        return bool(self._unsent)

    def send(self, value: object) -> None:
        self._unsent += framed(value)
        self.flush()

    def flush(self) -> None:
        """Hand over what there is room for; a process that is gone has no use for it."""
        try:
            while self._unsent:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()

    def received(self) -> list[Any]:
        """The messages that have come. After the last one, once the process has closed its end,
        `is_over`.
        """
        self._read()
        found = []
        while (end := self._end_of_first()) is not None:
            found.append(pickle.loads(memoryview(self._unread)[_LENGTH.size : end]))  # noqa: S301
            del self._unread[:end]
        return found

    def close(self) -> None:
        self.is_over = True
        self._end.close()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while not self.is_over:
                try:
                    news = self._end.recv(_MOST_AT_ONCE)
                except ConnectionError:
                    news = b""
                self.is_over = not news
                self._unread += news

    def _end_of_first(self) -> int | None:
        """Where the first message ends that has come, if it has come whole."""
        if len(self._unread) < _LENGTH.size:
            return None
        end = _LENGTH.size + int(_LENGTH.unpack_from(self._unread)[0])
        return end if len(self._unread) >= end else None


def link() -> tuple[AgentEnd, socket.socket]:
    """The agent's end, and that which is handed to the process."""
    ours, theirs = socket.socketpair()
    return AgentEnd(ours), theirs


def framed(value: object) -> bytes:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data
