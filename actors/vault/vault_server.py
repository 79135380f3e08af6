"""What a vault answers: to the workers of its node, to vaults whose buddy it is, to restores.

One thread a connection: there are a few for each rank of the node. Those that have not proven yet
that they know the run's token wait at a door that has one for all of them. One that cannot is ended
at once, and so is one that says what makes no sense.
"""

import socket
import threading
from contextlib import suppress

from remesh.actors.vault.replica import Buddy, Replica
from remesh.actors.vault.shelf import Claim, Lease, Sealed, Shelf
from remesh.actors.vault.slot_memory import SlotState
from remesh.actors.vault.wire import (
    Line,
    Message,
    VaultError,
    count,
    counts,
    heard_held,
)
from remesh.orchestrator.control.memory.timers import Timers
from remesh.parallel.doors.addresses import joined, listen
from remesh.parallel.doors.doorstep import Doorstep
from remesh.parallel.doors.keyed_hello import HelloVisitor
from remesh.parallel.plan.errors import CheckpointError, LayoutError

MAX_CONNECTIONS = 1024
LEAST_SLOTS = 2  # one that is stable, one to write to
NONSENSE = (KeyError, TypeError, ValueError, IndexError, AttributeError, LayoutError)


class VaultServer:
    """Listens on a port of its own until `close`."""

    def __init__(self, host: str, shelf: Shelf, *, token: str, timers: Timers) -> None:
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
    def open(cls, host: str, shelf: Shelf, *, token: str, timers: Timers) -> "VaultServer":
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
            threading.Thread(target=self._serve, args=(line,), name="vault", daemon=True).start()

    def _serve(self, line: Line) -> None:
        try:
            with suppress(OSError, EOFError):
                self._answer_all(line)
        finally:
            with self._lock:
                self._lines.discard(line)
            line.close()

    def _answer_all(self, line: Line) -> None:
        while True:
            message = line.receive()
            try:
                self._answer(line, message)
            except NONSENSE as error:
                raise VaultError(f"{message} makes no sense: {error!r}") from None

    def _answer(self, line: Line, message: Message) -> None:
        match message["op"]:
            case "lease":
                self._lease(line, message)
            case "keep":
                self._keep(line, message)
            case "open":
                self._open(line, message)
            case "get":
                self._get(line, message)
            case other:
                raise VaultError(f"{other!r} is nothing that a vault does")

    def _lease(self, line: Line, message: Message) -> None:
        """Serve a worker of this node for as long as it stays."""
        buddy = Buddy(address=message["buddy"], token=self._token, timers=self._timers)
        lease = self._claimed(line, _claim(message, least_slots=LEAST_SLOTS))
        if lease is not None:
            paths = [str(slot.path) for slot in lease.slots]
            line.send({"op": "leased", "paths": paths})
            _Tenancy(self._shelf, lease, line, buddy).serve()

    def _keep(self, line: Line, message: Message) -> None:
        """Take in another vault's snapshots for as long as it stays."""
        claim = _claim(message, guest=True, least_slots=count(message["slots"], least=1))
        lease = self._claimed(line, claim)
        if lease is None:
            return
        line.send({})
        try:
            while True:
                self._take_in(line, lease, line.receive())
        finally:
            self._shelf.end(lease)

    def _claimed(self, line: Line, claim: Claim) -> Lease | None:
        try:
            return self._shelf.lease(claim)
        except OSError as error:
            line.send({"error": error.strerror or str(error)})
            return None

    def _take_in(self, line: Line, lease: Lease, message: Message) -> None:
        if message["op"] == "stable":
            self._shelf.stable(lease.claim.generation)
            return
        number, step = counts(message, "slot", "step")
        slot = lease.slots[number]
        if message["op"] != "put" or not self._shelf.may_write(lease):
            raise VaultError(f"generation {lease.claim.generation} is over")
        slot.state, slot.step = SlotState.WRITING, step
        line.receive_into(slot.shard)
        try:
            self._shelf.admit(lease, number, message["digest"])
        except CheckpointError as error:
            line.send({"error": f"the snapshot did not arrive as it was: {error}"})
        else:
            line.send({})

    def _open(self, line: Line, message: Message) -> None:
        found = self._found(line, message)
        if found is not None:
            told = {
                "digest": found.digest,
                "size_bytes": found.memory.size_bytes,
                "header_bytes": found.start_bytes,
            }
            line.send(told, found.memory.shard[: found.start_bytes])

    def _get(self, line: Line, message: Message) -> None:
        start, length = counts(message, "start", "length")
        found = self._found(line, message)
        if found is not None:
            data = found.memory.shard[start : start + length]
            line.send({"length": len(data)}, data)

    def _found(self, line: Line, message: Message) -> Sealed | None:
        generation, step = counts(message, "generation", "step")
        found = self._shelf.find(generation, step, heard_held(message["held"]))
        if found is None:
            line.send({"error": f"no snapshot of generation {generation} at step {step}"})
        return found


class _Tenancy:
    """A worker's slots while it is connected: sealed when it says so, sent on to the buddy."""

    def __init__(self, shelf: Shelf, lease: Lease, line: Line, buddy: Buddy) -> None:
        self._shelf = shelf
        self._lease = lease
        self._line = line
        self._buddy = buddy
        self._sending = threading.Lock()
        self._replica: Replica | None = None

    def serve(self) -> None:
        try:
            if self._buddy.address:
                self._replica = self._started()
            while True:
                self._answer(self._line.receive())
        finally:
            for number, snapshot in self._shelf.seal_copied(self._lease):
                self._send_on(number, snapshot)
            self._shelf.end(self._lease)
            if self._replica:
                self._replica.finish(self._buddy.timers.end_s)

    def _answer(self, message: Message) -> None:
        if message["op"] == "stable":
            self._shelf.stable(self._lease.claim.generation)
            if self._replica:
                self._replica.stable()
            return
        number = count(message["slot"])
        try:
            snapshot = self._shelf.seal(self._lease, number)
        except CheckpointError as error:
            self._tell({"op": "spoilt", "slot": number, "error": str(error)})
            return
        self._tell({"op": "sealed", "slot": number, "step": snapshot.step})
        self._send_on(number, snapshot)

    def _send_on(self, number: int, snapshot: Sealed) -> None:
        if self._replica:
            self._replica.send(number, snapshot)

    def _started(self) -> Replica:
        replica = Replica(
            self._buddy,
            self._lease.claim,
            num_slots=len(self._lease.slots),
            safe=lambda number, one: self._tell({"op": "safe", "slot": number, "step": one.step}),
            lost=lambda why: self._tell({"op": "alone", "error": why}),
        )
        replica.start()
        return replica

    def _tell(self, message: Message) -> None:
        """The worker may have gone."""
        with self._sending, suppress(OSError):
            self._line.send(message)


def _claim(message: Message, *, guest: bool = False, least_slots: int = 1) -> Claim:
    generation, size_bytes, from_step = counts(message, "generation", "size_bytes", "from_step")
    return Claim(
        generation=generation,
        held=heard_held(message["held"]),
        size_bytes=size_bytes,
        from_step=from_step,
        guest=guest,
        least_slots=least_slots,
    )
