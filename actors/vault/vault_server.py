"""What a vault answers: to the workers of its node, to vaults whose buddy it is, to restores.

One thread a connection: there are a few for each rank of the node. Those that have not proven yet
that they know the run's token wait at a door that has one for all of them. One that cannot is ended
at once, and so is one that says what makes no sense.
"""

import socket
import threading
from contextlib import suppress
from functools import partial

from remesh.actors.vault.messages import (
    Granted,
    HeaderFollows,
    KeepCopies,
    LeaseSlots,
    LeftAlone,
    Message,
    NowStable,
    PutCopy,
    RangeFollows,
    ReadHeader,
    ReadRange,
    Refused,
    SealSlot,
    SlotSafe,
    SlotSealed,
    SlotsLeased,
    SlotSpoilt,
)
from remesh.actors.vault.replica import Buddy, Replica
from remesh.actors.vault.shelf import Claim, Lease, Sealed, Shelf
from remesh.actors.vault.slot_memory import SlotState
from remesh.actors.vault.wire import HELLO, WIRE_FORMAT, Line, VaultError
from remesh.orchestrator.job.timers import Timers
from remesh.parallel.doors.addresses import joined, listen
from remesh.parallel.doors.doorstep import Doorstep
from remesh.parallel.doors.keyed_hello import HelloVisitor
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.threads import heard_thread

MAX_CONNECTIONS = 1024
LEAST_SLOTS = 2  # one that is stable, one to write to


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
                raise _out_of_place(message)

    def _lease(self, line: Line, asked: LeaseSlots) -> None:
        """Serve a worker of this node for as long as it stays."""
        buddy = Buddy(address=asked.buddy, token=self._token, timers=self._timers)
        lease = self._claimed(line, _claim(asked, guest=False, least_slots=LEAST_SLOTS))
        if lease is not None:
            line.send(SlotsLeased(paths=tuple(str(slot.path) for slot in lease.slots)))
            _Tenancy(self._shelf, lease, line, buddy).serve()

    def _keep(self, line: Line, asked: KeepCopies) -> None:
        """Take in another vault's snapshots for as long as it stays."""
        lease = self._claimed(line, _claim(asked, guest=True, least_slots=max(1, asked.slots)))
        if lease is None:
            return
        line.send(Granted())
        try:
            while True:
                self._take_in(line, lease, line.receive())
        finally:
            self._shelf.end(lease)

    def _claimed(self, line: Line, claim: Claim) -> Lease | None:
        try:
            return self._shelf.lease(claim)
        except OSError as error:
            line.send(Refused(error=error.strerror or str(error)))
            return None

    def _take_in(self, line: Line, lease: Lease, message: Message) -> None:
        match message:
            case NowStable():
                self._shelf.stable(lease.claim.generation)
            case PutCopy() if message.slot < len(lease.slots):
                self._put(line, lease, message)
            case _:
                raise _out_of_place(message)

    def _put(self, line: Line, lease: Lease, put: PutCopy) -> None:
        slot = lease.slots[put.slot]
        if not self._shelf.may_write(lease):
            raise VaultError(f"generation {lease.claim.generation} is over")
        slot.state, slot.step = SlotState.WRITING, put.step
        line.receive_into(slot.shard)
        try:
            self._shelf.admit(lease, put.slot, put.digest)
        except CheckpointError as error:
            line.send(Refused(error=f"the snapshot did not arrive as it was: {error}"))
        else:
            line.send(Granted())

    def _read_header(self, line: Line, asked: ReadHeader) -> None:
        found = self._found(line, asked)
        if found is not None:
            told = HeaderFollows(
                digest=found.digest,
                size_bytes=found.memory.size_bytes,
                header_bytes=found.start_bytes,
            )
            line.send(told, found.memory.shard[: found.start_bytes])

    def _read_range(self, line: Line, asked: ReadRange) -> None:
        found = self._found(line, asked)
        if found is not None:
            data = found.memory.shard[asked.start : asked.start + asked.length]
            line.send(RangeFollows(length=len(data)), data)

    def _found(self, line: Line, asked: ReadHeader | ReadRange) -> Sealed | None:
        found = self._shelf.find(asked.generation, asked.step, asked.held)
        if found is None:
            text = f"no snapshot of generation {asked.generation} at step {asked.step}"
            line.send(Refused(error=text))
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
        match message:
            case NowStable():
                self._shelf.stable(self._lease.claim.generation)
                if self._replica:
                    self._replica.stable()
            case SealSlot(slot=number) if number < len(self._lease.slots):
                self._seal(number)
            case _:
                raise _out_of_place(message)

    def _seal(self, number: int) -> None:
        try:
            snapshot = self._shelf.seal(self._lease, number)
        except CheckpointError as error:
            self._tell(SlotSpoilt(slot=number, error=str(error)))
            return
        self._tell(SlotSealed(slot=number, step=snapshot.step))
        self._send_on(number, snapshot)

    def _send_on(self, number: int, snapshot: Sealed) -> None:
        if self._replica:
            self._replica.send(number, snapshot)

    def _started(self) -> Replica:
        replica = Replica(
            self._buddy,
            self._lease.claim,
            num_slots=len(self._lease.slots),
            safe=lambda number, one: self._tell(SlotSafe(slot=number, step=one.step)),
            lost=lambda why: self._tell(LeftAlone(error=why)),
        )
        replica.start()
        return replica

    def _tell(self, message: Message) -> None:
        """The worker may have gone."""
        with self._sending, suppress(OSError):
            self._line.send(message)


def _hung_up(_: Exception) -> None:
    """The line is closed by now, which is how the other side learns of it."""


def _out_of_place(message: Message) -> VaultError:
    return VaultError(f"a vault does nothing about {message} here")


def _claim(asked: LeaseSlots | KeepCopies, *, guest: bool, least_slots: int) -> Claim:
    return Claim(
        generation=asked.generation,
        held=asked.held,
        size_bytes=asked.size_bytes,
        from_step=asked.from_step,
        guest=guest,
        least_slots=least_slots,
    )
