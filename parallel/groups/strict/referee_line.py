"""A rank's connection to the referee: what it says, and a thread that hears the answers.

All groups of a mesh share it, so that the referee hears a rank's words in the order of its acts.
"""

import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from remesh.parallel.doors.keyed_hello import greet
from remesh.parallel.groups.strict.described import Described
from remesh.parallel.threads import heard_thread

_SETTLE_S = 2.0  # for an answer of a referee that lives


class Judged(Protocol):
    """A group, as the referee's words reach it."""

    def go(self) -> None: ...

    def fail(self, text: str) -> None: ...


class RefereeLine:
    """For any thread. Once the line is down, all groups fail what the backend has not yet."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.RLock()
        self._groups: dict[str, Judged] = {}
        self._verdict = ""
        self._skipped: list[str] = []
        self._settled = threading.Event()
        self._is_down = False
        self._thread = heard_thread(self._hear, name="referee line")

    @staticmethod
    def connect(
        where: tuple[str, int], *, secret: bytes, rank: int, timeout_s: float
    ) -> "RefereeLine":
        """Raises: OSError if the referee is not there."""
        connection = socket.create_connection(where, timeout=timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greet(connection, secret)
            connection.settimeout(None)
        except OSError:
            connection.close()
            raise
        line = RefereeLine(connection)
        line.says("rank", rank)
        line.start()
        return line

    def start(self) -> None:
        self._thread.start()

    def joins(self, name: str, place: int, group: Judged) -> None:
        self._groups[name] = group
        self.says("joins", name, place)

    def says_start(self, name: str, described: Described) -> None:
        self.says("starts", threading.get_ident(), name, described.to_numbers())

    def says_wait(self, name: str, number: int) -> None:
        self.says("waits", threading.get_ident(), name, number)

    def says_leave(self, name: str) -> None:
        if self._groups.pop(name, None) is not None:
            self.says("leaves", name)

    def says(self, *word: Any) -> None:
        """What is said on a line that is down, nobody hears."""
        with self._lock, suppress(OSError):
            self._connection.sendall(json.dumps(word).encode() + b"\n")

    def notes(self, text: str) -> None:
        """What is to be complained of as soon as there is somebody to raise it to."""
        self._skipped.append(text)

    def complaint(self) -> str:
        """What this rank has done wrong, told to all."""
        if not self._skipped:
            return ""
        text = "; ".join(self._skipped)
        self.says("accuses", text)
        return text

    def verdict(self, *, asks: bool) -> str:
        """Why the mesh is over, if the referee has said so: by now, if it is to be asked."""
        if asks and not self._verdict and not self._is_down:
            self._settled.clear()
            self.says("asks")
            self._settled.wait(_SETTLE_S)
        return self._verdict

    def close(self) -> None:
        """Repeatable."""
        with suppress(OSError):  # ended already
            self._connection.shutdown(socket.SHUT_RDWR)

    def _hear(self) -> None:
        with self._connection, self._connection.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                self._obey(json.loads(line))
        self._is_down = True
        self._settled.set()
        self._fail_all("the rank that compares what all ranks do has gone")

    def _obey(self, word: Sequence[str]) -> None:
        kind, name, text = word
        group = self._groups.get(name)
        if kind == "go" and group is not None:
            group.go()
        elif kind == "lost" and group is not None:
            group.fail(text)
        elif kind == "wrong":
            self._verdict = text
            self._fail_all(text)
        elif kind == "heard":
            self._settled.set()

    def _fail_all(self, text: str) -> None:
        for group in list(self._groups.values()):
            group.fail(text)
