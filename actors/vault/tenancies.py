"""Who has a lease of a vault: a worker of its node, or another vault that puts copies."""

import threading
from contextlib import suppress
from typing import assert_never

from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.messages import Granted, Message, PutCopy
from remesh.actors.vault.replica import Buddy, Replica
from remesh.actors.vault.wire import Line, VaultError
from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.vault_words import (
    GenerationOver,
    NowStable,
    Refused,
    SealSlot,
    SlotsLeased,
    ToRank,
)


def out_of_place(message: Message) -> VaultError:
    return VaultError(f"a vault does nothing about {message} here")


class Tenancy:
    """A worker's slots while it is connected: sealed when it says so, sent on to the buddy."""

    def __init__(self, shelf: KeptShelf, line: Line, claim: sw.Claim, buddy: Buddy) -> None:
        self._shelf = shelf
        self._line = line
        self._claim = claim
        self._buddy = buddy
        self._lease = 0
        self._sending = threading.Lock()
        self._replica: Replica | None = None
        self._granted: tuple[int, ...] = ()

    def serve(self) -> None:
        """For as long as the worker stays; at once if there are no slots for it."""
        self._lease = self._shelf.claim(self._claim, self)
        try:
            if self._granted:
                self._begin()
                while True:
                    self._answer(self._line.receive())
        finally:
            self._shelf.hang_up(self._lease)
            if self._replica:
                self._replica.join(self._buddy.timers.end_s)
            self._shelf.forget(self._lease)

    def hear(self, do: sw.ForTenant) -> None:
        match do:
            case sw.Grant():
                self._granted = do.slots
            case sw.Refuse():
                self._tell(Refused(error=do.reason) if do.reason else GenerationOver())
            case sw.TellRank():
                self._tell(do.word)
            case sw.SendCopy() | sw.SendStable() | sw.EndCopies():
                if self._replica:
                    self._hand_over(self._replica, do)
            case _:
                raise AssertionError(f"{do} is nothing for a worker")

    def _hand_over(self, replica: Replica, do: sw.SendCopy | sw.SendStable | sw.EndCopies) -> None:
        match do:
            case sw.SendCopy():
                snapshot = self._shelf.sealed(do.lease, do.number, do.step)
                if snapshot is None:  # a newer generation has abandoned it meanwhile
                    self._shelf.say(sw.CopiesRefused(lease=do.lease, error=""))
                else:
                    replica.send(do.number, snapshot)
            case sw.SendStable():
                replica.stable()
            case sw.EndCopies():
                replica.end()
            case _:
                assert_never(do)

    def _begin(self) -> None:
        if self._claim.copied:
            self._replica = Replica(
                self._buddy,
                self._claim,
                num_slots=len(self._granted),
                taken=lambda: self._shelf.say(sw.CopyTaken(lease=self._lease)),
                refused=lambda why: self._shelf.say(sw.CopiesRefused(lease=self._lease, error=why)),
            )
            self._replica.start()
        paths = tuple(str(self._shelf.memory_of(slot).path) for slot in self._granted)
        self._tell(SlotsLeased(paths=paths))

    def _answer(self, message: Message) -> None:
        match message:
            case NowStable():
                self._shelf.say(sw.StableSaid(lease=self._lease))
            case SealSlot(slot=number) if number < len(self._granted):
                self._shelf.copied(self._lease, number)
            case _:
                raise out_of_place(message)

    def _tell(self, word: ToRank) -> None:
        """The worker may have gone."""
        with self._sending, suppress(OSError):
            self._line.send(word)


class Guest:
    """Another vault, which puts copies of its worker's snapshots for as long as it stays."""

    def __init__(self, shelf: KeptShelf, line: Line, claim: sw.Claim) -> None:
        self._shelf = shelf
        self._line = line
        self._claim = claim
        self._granted: tuple[int, ...] = ()
        self._digest = ""

    def serve(self) -> None:
        """At once if there are no slots for it."""
        lease = self._shelf.claim(self._claim, self)
        try:
            while self._granted:
                self._take_in(lease, self._line.receive())
        finally:
            self._shelf.hang_up(lease)
            self._shelf.forget(lease)

    def hear(self, do: sw.ForTenant) -> None:
        """Called by the thread that serves, since nothing of a guest happens by itself."""
        match do:
            case sw.Grant():
                self._granted = do.slots
                self._line.send(Granted())
            case sw.Refuse():
                self._line.send(Refused(error=do.reason) if do.reason else GenerationOver())
            case sw.TakeIn():
                self._line.receive_into(self._shelf.memory_of(do.slot).shard)
                self._shelf.arrived(do.lease, do.number, self._digest)
            case sw.AnswerPut():
                said = f"the snapshot did not arrive as it was: {do.error}"
                self._line.send(Refused(error=said) if do.error else Granted())
            case sw.RefusePut():
                self._line.send(GenerationOver())
                raise VaultError(f"generation {self._claim.generation} is over")
            case sw.EndCopies():
                pass  # it sends none on
            case _:
                raise AssertionError(f"{do} is nothing for a guest")

    def _take_in(self, lease: int, message: Message) -> None:
        match message:
            case NowStable():
                self._shelf.say(sw.StableSaid(lease=lease))
            case PutCopy() if message.slot < len(self._granted):
                self._digest = message.digest
                self._shelf.say(sw.PutOffered(lease=lease, number=message.slot, step=message.step))
            case _:
                raise out_of_place(message)
