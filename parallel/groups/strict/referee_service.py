"""The referee at its port, in the process of a mesh's first rank, for the ranks of that mesh.

Two threads: one those who have proven that they know the mesh's secret, one those who are still to.
It ends by itself once all ranks have come and gone.
"""

import json
import selectors
import socket
from contextlib import suppress
from typing import Any

from remesh.parallel.doors.arrivals import Arrivals
from remesh.parallel.doors.doorstep import Doorstep
from remesh.parallel.doors.keyed_hello import HelloVisitor
from remesh.parallel.groups.strict.described import Described
from remesh.parallel.groups.strict.referee import Referee, Ruling
from remesh.parallel.threads import heard_thread

_RECEIVE_BYTES = 1 << 16


class _Listener:
    """A rank's connection, and what of its next word has come so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.rank: int | None = None


class RefereeService:
    """Serves from `open` until all of `num_ranks` have come and gone, or `close`."""

    def __init__(self, num_ranks: int) -> None:
        self._referee = Referee()
        self._num_awaited = num_ranks
        self._arrivals = Arrivals()
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, _Listener] = {}
        self._num_there = 0
        self._door: Doorstep[HelloVisitor] | None = None
        self._thread = heard_thread(self._serve, name="referee")

    @staticmethod
    def open(host: str, *, secret: bytes, num_ranks: int, limit_s: float) -> "RefereeService":
        """`limit_s` bounds each hello. Raises: OSError if this host has not that address."""
        service = RefereeService(num_ranks)
        service.start(
            Doorstep.open((host, 0), lambda: HelloVisitor(secret), service.welcome, limit_s=limit_s)
        )
        return service

    @property
    def port(self) -> int:
        assert self._door, "start comes first"
        return int(self._door.port)

    def start(self, door: Doorstep[HelloVisitor]) -> None:
        self._door = door
        self._thread.start()

    def welcome(self, connection: socket.socket, visitor: HelloVisitor) -> None:
        """Serve one that has proven itself. From any thread."""
        self._arrivals.welcome(connection, visitor)

    def close(self) -> None:
        """Repeatable."""
        self._arrivals.close()

    def _serve(self) -> None:
        self._arrivals.register(self._selector)
        try:
            while self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        """Whether to go on."""
        for key, _ in self._selector.select():
            if key.fileobj is not self._arrivals.rung:
                self._hear(key.data)
            elif self._arrivals.go_on():
                self._take_in()
            else:
                return False
        return bool(self._num_awaited or self._num_there)

    def _take_in(self) -> None:
        for connection in self._arrivals.taken():
            rank = _Listener(connection)
            self._selector.register(rank.connection, selectors.EVENT_READ, rank)
            self._num_there += 1
            self._num_awaited -= 1
        if not self._num_awaited:
            self._close_door()

    def _hear(self, rank: _Listener) -> None:
        try:
            piece = rank.connection.recv(_RECEIVE_BYTES)
        except OSError:
            piece = b""
        if not piece:
            self._part_with(rank)
            return
        *lines, rank.received = (rank.received + piece).split(b"\n")
        for line in lines:
            self._tell(self._answered(rank, json.loads(line)))

    def _answered(self, teller: _Listener, word: list[Any]) -> list[Ruling]:
        referee, rank = self._referee, teller.rank
        if rank is None:
            [_, teller.rank] = word
            self._ranks[word[1]] = teller
            return []
        match word:
            case ["asks"]:
                told = [Ruling(rank=rank, kind="heard")]
            case ["joins", group, place]:
                told = referee.joins(rank, group, place)
            case ["starts", thread, group, numbers]:
                told = referee.starts(rank, thread, group, Described.from_numbers(numbers))
            case ["waits", thread, group, number]:
                told = referee.waits(rank, thread, group, number)
            case ["leaves", group]:
                told = referee.leaves(rank, group)
            case ["accuses", text]:
                told = referee.accuses(f"rank {rank}: {text}")
            case _:
                told = referee.accuses(f"rank {rank} said what no referee knows: {word}")
        return told

    def _tell(self, answers: list[Ruling]) -> None:
        for answer in answers:
            text = json.dumps([answer.kind, answer.group, answer.text])
            with suppress(OSError, KeyError):  # gone: its own turn will show it
                self._ranks[answer.rank].connection.sendall(text.encode() + b"\n")

    def _part_with(self, rank: _Listener) -> None:
        self._selector.unregister(rank.connection)
        rank.connection.close()
        self._num_there -= 1
        if rank.rank is not None:
            del self._ranks[rank.rank]
            self._tell(self._referee.goes(rank.rank))

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close()

    def _end(self) -> None:
        self._close_door()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Listener):
                key.data.connection.close()
        self._arrivals.end()
        self._selector.close()
