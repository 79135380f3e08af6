"""Whose slots a vault keeps, which of them are sealed, and when they may be used again.

A rank has three slots a generation: the newest stable one, the newest sealed one, and one to write
to. Those of earlier generations stay until a snapshot of a newer one is stable, since nobody but
the controller knows which of them the state can be put together from; those of steps that a newer
generation has abandoned go as soon as it begins. A slot whose mapper may live is never handed on.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from remesh.actors.vault.slot_memory import SlotMemory, SlotState
from remesh.actors.vault.vault_memory import NoRoomError, VaultMemory
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.headers import header_of, sealed, shard_digest
from remesh.parallel.state.root_manifest import CheckpointRef
from remesh.parallel.state.storage import Blob

NUM_SLOTS = 3
_LOOK_EVERY_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Slots for one rank of one generation. A `guest` is a rank of another node.

    Steps of earlier generations after `from_step` are abandoned. With fewer than `least_slots` it
    is no use.
    """

    generation: int
    held: Held
    size_bytes: int
    from_step: int
    guest: bool = False
    least_slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A snapshot that is whole. `digest` proves its header, which proves the rest.

    Before its tensors stand `start_bytes`.
    """

    generation: int
    step: int
    held: Held
    digest: str
    start_bytes: int
    memory: SlotMemory

    @property
    def is_there(self) -> bool:
        """The worker may have begun to write over it."""
        return self.memory.is_sealed_at(self.step)


@dataclass(slots=True, eq=False)
class Lease:
    """The slots of a claim, by their number; open while somebody may write to them."""

    claim: Claim
    slots: list[SlotMemory]
    sealed: dict[int, Sealed] = field(default_factory=dict)
    open: bool = True

    def there(self) -> Iterator[Sealed]:
        return (one for one in list(self.sealed.values()) if one.is_there)


class Shelf:
    """The leases of a vault. For any number of threads."""

    def __init__(self, memory: VaultMemory) -> None:
        self._memory = memory
        self._leases: list[Lease] = []
        self._changed = threading.Condition()
        self._at_work = 0
        self._asked_in = -1
        self._anchor = -1

    def lease(self, claim: Claim) -> Lease:
        """As many slots as there is room for, up to three.

        Raises: NoRoomError if there is room for less than the claim needs, or the generation over.
        """
        with self._changed:
            if claim.generation <= self._asked_in:
                raise NoRoomError(f"generation {claim.generation} is over")
            self._abandon(claim)
        slots: list[SlotMemory] = []
        try:
            while len(slots) < NUM_SLOTS:
                slots.append(self._take(claim))
        except NoRoomError:
            if len(slots) < claim.least_slots:
                for slot in slots:
                    self._memory.give_back(slot)
                raise
        for slot in slots:
            slot.state = SlotState.FREE
        lease = Lease(claim, slots)
        with self._changed:
            self._leases.append(lease)
        return lease

    def end(self, lease: Lease) -> None:
        """Its mapper is gone, and what that had begun to write with it."""
        with self._changed:
            lease.open = False
            self._tidy()

    def seal_copied(self, lease: Lease) -> Iterator[tuple[int, Sealed]]:
        """Seal what a mapper that is gone had copied whole."""
        for number, slot in enumerate(lease.slots):
            if slot.state is SlotState.COPIED:
                with suppress(CheckpointError):
                    yield number, self.seal(lease, number)

    def seal(self, lease: Lease, number: int) -> Sealed:
        """Prove what was copied into a slot: from now on it counts.

        Raises: CheckpointError if it is no snapshot.
        """
        slot = lease.slots[number]
        with self._working():
            header = header_of(slot.shard, size_bytes=slot.size_bytes)
            ref = CheckpointRef(step=slot.step, generation=lease.claim.generation)
            start = sealed(replace(header, ref=ref), slot.shard)
            slot.shard[: len(start)] = start
            return self._note(lease, number, start)

    def admit(self, lease: Lease, number: int, digest: str) -> Sealed:
        """Prove a sealed snapshot of another vault, which was received into a slot.

        Raises: CheckpointError if a bit of it is another.
        """
        slot = lease.slots[number]
        with self._working():
            header = header_of(slot.shard, size_bytes=slot.size_bytes)
            if shard_digest(slot.shard) != digest:
                raise CheckpointError("the hash of its header is not the one that was told")
            for part in header.parts:
                if not part.has_chunks(0, slot.shard[part.start : part.end]):
                    raise CheckpointError(f"the hash of {part.fragment} is not in its header")
            start_bytes = min(part.start for part in header.parts)
            return self._note(lease, number, slot.shard[:start_bytes])

    def may_write(self, lease: Lease) -> bool:
        """Whether slots of that generation may change: not any more once they have been told."""
        return lease.claim.generation > self._asked_in

    def stable(self, generation: int) -> None:
        """A snapshot of this generation is stable: earlier ones are not needed any more.

        Unless they have been told of meanwhile: then they stay for the next generation.
        """
        with self._changed:
            if generation <= self._asked_in:
                return
            self._anchor = max(self._anchor, generation)
            old = [lease for lease in self._leases if self._is_old(lease, generation)]
            self._leases = [
                lease for lease in self._leases if lease not in old or not self._dropped(lease)
            ]
            self._memory.trim()

    def told(self, generation: int, limit_s: float) -> list[Sealed]:
        """All sealed snapshots, once those that are being sealed are, for as long as the limit."""
        with self._changed:
            self._asked_in = max(self._asked_in, generation)
            deadline_s = time.monotonic() + limit_s
            while self._is_at_work() and time.monotonic() < deadline_s:
                self._changed.wait(_LOOK_EVERY_S)
            return list(self._there())

    def find(self, generation: int, step: int, held: Held) -> Sealed | None:
        with self._changed:
            for one in self._there():
                if (one.generation, one.step, one.held) == (generation, step, held):
                    return one
        return None

    def _is_at_work(self) -> bool:
        """Whether a snapshot is being sealed, or is about to be."""
        own = (slot for lease in self._leases if not lease.claim.guest for slot in lease.slots)
        return self._at_work > 0 or any(slot.state is SlotState.COPIED for slot in own)

    def _there(self) -> Iterator[Sealed]:
        return (one for lease in self._leases for one in lease.there())

    def _note(self, lease: Lease, number: int, start: Blob) -> Sealed:
        slot, claim = lease.slots[number], lease.claim
        found = Sealed(
            generation=claim.generation,
            step=slot.step,
            held=claim.held,
            digest=shard_digest(start),
            start_bytes=len(start),
            memory=slot,
        )
        slot.state = SlotState.SEALED
        lease.sealed[number] = found
        return found

    def _take(self, claim: Claim) -> SlotMemory:
        while True:
            try:
                return self._memory.take(claim.size_bytes)
            except NoRoomError:
                if not self._make_room(claim):
                    raise

    def _make_room(self, claim: Claim) -> bool:
        """Do without the oldest generation that never had anything stable, if there is one."""
        with self._changed:
            for lease in self._leases:
                spare = self._anchor < lease.claim.generation < claim.generation
                if spare and self._anchor >= 0 and self._dropped(lease):
                    self._leases.remove(lease)
                    return True
        return False

    def _abandon(self, claim: Claim) -> None:
        for lease in self._leases:
            if lease.claim.generation < claim.generation:
                for number, one in list(lease.sealed.items()):
                    if one.step > claim.from_step:
                        del lease.sealed[number]
        self._tidy()

    def _tidy(self) -> None:
        """Give back what no mapper has and nobody needs."""
        for lease in list(self._leases):
            if lease.open:
                continue
            needed = {id(one.memory) for one in lease.there()}
            for slot in lease.slots:
                if id(slot) not in needed:
                    self._memory.give_back(slot)
            lease.sealed = dict(enumerate(lease.there()))
            lease.slots = [one.memory for one in lease.sealed.values()]
            if not lease.slots:
                self._leases.remove(lease)

    def _is_old(self, lease: Lease, generation: int) -> bool:
        """Of a generation before, or of a rank that has begun anew in this one."""
        newer = (
            other.open and other.claim == lease.claim and other is not lease
            for other in self._leases
        )
        claimed = lease.claim.generation
        return claimed < generation or (claimed == generation and not lease.open and any(newer))

    def _dropped(self, lease: Lease) -> bool:
        """Whether all of its slots could be given back."""
        lease.sealed.clear()
        if lease.open:
            return False
        for slot in lease.slots:
            self._memory.give_back(slot)
        return True

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._changed:
            self._at_work += 1
        try:
            yield
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()
