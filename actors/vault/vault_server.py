"""What a vault answers: to the workers of its node, to vaults whose buddy it is, to restores.

One thread a connection: there are a few for each rank of the node. Those that have not proven yet
that they know the run's token wait at a door that has one for all of them. One that cannot is ended
at once, and so is one that says what makes no sense.
"""

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial

from remesh.actors.vault.kept_shelf import KeptShelf, SealedSlot
from remesh.actors.vault.messages import (
    HeaderFollows,
    KeepCopies,
    Message,
    RangeFollows,
    ReadHeader,
    ReadRange,
)
from remesh.actors.vault.replica import Buddy
from remesh.actors.vault.tenancies import Guest, Tenancy, out_of_place
from remesh.actors.vault.wire import HELLO, WIRE_FORMAT, Line
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.vault.shelf_words import Claim
from remesh.orchestrator.vault.vault_words import LeaseSlots, Refused
from remesh.parallel.doors.addresses import joined, listen
from remesh.parallel.doors.doorstep import Doorstep
from remesh.parallel.doors.keyed_hello import HelloVisitor
from remesh.parallel.threads import heard_thread

MAX_CONNECTIONS = 1024
LEAST_SLOTS = 2  # one that is stable, one to write to


class VaultServer:
    """Listens on a port of its own until `close`."""

    def __init__(self, host: str, shelf: KeptShelf, *, token: str, timers: Timers) -> None:
        self._door = Doorstep(
            listen(host),
            lambda: HelloVisitor(token.encode()),
            self._welcome,
            limit_s=timers.form_s,
        )
        self.address = joined(self._door.host, self._door.port)
        self._shelf = shelf
        self._token = token
        self._timers = timers
        self._lock = threading.Lock()
        self._lines: set[Line] = set()

    @classmethod
    def open(cls, host: str, shelf: KeptShelf, *, token: str, timers: Timers) -> "VaultServer":
        server = cls(host, shelf, token=token, timers=timers)
        server._door.start()
        return server

    def close(self) -> None:
        """Ends the listener and every connection. Repeatable."""
        self._door.close()
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.close()

    def _welcome(self, connection: socket.socket, visitor: HelloVisitor) -> None:
        """Serve one that has proven itself."""
        line = Line(connection, visitor.welcome(connection), self._timers.form_s)
        with self._lock:
            is_full = len(self._lines) >= MAX_CONNECTIONS
            if not is_full:
                self._lines.add(line)
        if is_full:
            line.close()
        else:
            serve = partial(self._serve, line)
            heard_thread(serve, name="vault", failed=_hung_up).start()

    def _serve(self, line: Line) -> None:
        try:
            with suppress(OSError, EOFError):
                self._answer_all(line)
        finally:
            with self._lock:
                self._lines.discard(line)
            line.close()

    def _answer_all(self, line: Line) -> None:
        (spoken,) = HELLO.unpack(line.receive_bytes(HELLO.size))
        if spoken != WIRE_FORMAT:
            line.refuse(
                f"vaults here talk in format {WIRE_FORMAT}, and this one was addressed in format "
                f"{spoken}; install one version of remesh on all nodes"
            )
            return
        while True:
            self._answer(line, line.receive())

    def _answer(self, line: Line, message: Message) -> None:
        match message:
            case LeaseSlots():
                self._lease(line, message)
            case KeepCopies():
                self._keep(line, message)
            case ReadHeader():
                self._read_header(line, message)
            case ReadRange():
                self._read_range(line, message)
            case _:
                raise out_of_place(message)

    def _lease(self, line: Line, asked: LeaseSlots) -> None:
        """Serve a worker of this node for as long as it stays."""
        buddy = Buddy(address=asked.buddy, token=self._token, timers=self._timers)
        claim = replace(_claim(asked), least_slots=LEAST_SLOTS, copied=bool(asked.buddy))
        Tenancy(self._shelf, line, claim, buddy).serve()

    def _keep(self, line: Line, asked: KeepCopies) -> None:
        """Take in another vault's snapshots for as long as it stays."""
        claim = replace(_claim(asked), least_slots=max(1, asked.slots), guest=True)
        Guest(self._shelf, line, claim).serve()

    def _read_header(self, line: Line, asked: ReadHeader) -> None:
        found = self._found(line, asked)
        if found is not None:
            told = HeaderFollows(
                digest=found.proof.digest,
                size_bytes=found.memory.size_bytes,
                header_bytes=found.proof.start_bytes,
                path=str(found.memory.path),
            )
            line.send(told, found.memory.shard[: found.proof.start_bytes])

    def _read_range(self, line: Line, asked: ReadRange) -> None:
        found = self._found(line, asked)
        if found is not None:
            data = found.memory.shard[asked.start : asked.start + asked.length]
            line.send(RangeFollows(length=len(data)), data)

    def _found(self, line: Line, asked: ReadHeader | ReadRange) -> SealedSlot | None:
        found = self._shelf.find(asked.generation, asked.step, asked.held)
        if found is None:
            text = f"no snapshot of generation {asked.generation} at step {asked.step}"
            line.send(Refused(error=text))
        return found


def _hung_up(_: Exception) -> None:
    """The line is closed by now, which is how the other side learns of it."""


def _claim(asked: LeaseSlots | KeepCopies) -> Claim:
    return Claim(
        generation=asked.generation,
        held=asked.held,
        size_bytes=asked.size_bytes,
        from_step=asked.from_step,
    )
