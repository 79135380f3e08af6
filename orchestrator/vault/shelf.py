"""Whose slots a vault keeps, which of them are sealed, and when they may be used again. Pure.

A rank has three slots a generation: the newest stable one, the newest sealed one, and one to write
to. Those of earlier generations stay until a snapshot of a newer one is stable, since nobody but
the controller knows which of them the state can be put together from; those of steps that a newer
generation has abandoned go as soon as it begins.

**No mapper reaches what was told.** A worker writes its snapshots into shared memory, and one that
was frozen before a fence may go on to write there at any time after it. So a vault answers the
controller only with slots that nobody has mapped: it waits until the mapper has let go, which is
proven by a lock that the kernel drops with the process, and copies what is still mapped after the
limit to memory of its own, proves the copy, and tells of that. For the same reason a slot whose
mapper may live is never handed on. What lost: to find stale bytes by their hash when they are read,
since the snapshot is lost then; to copy every snapshot as it is sealed, which costs each step what
only a zombie needs; to take the memory away from under the mapper, which kills a healthy worker
that parks a little late.
"""

from collections.abc import Callable, Mapping
from typing import Any

from remesh.orchestrator.vault import copies
from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.inquiry import Inquiry, rescued
from remesh.orchestrator.vault.lease import NOWHERE, Lease, LeasedSlot
from remesh.orchestrator.vault.vault_words import SlotSealed, SlotSpoilt, SlotState
from remesh.parallel.plan.cut import Held

NUM_SLOTS = 3


class Shelf:
    """The leases of a vault. `handle` is the only mutator."""

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}
        self.anchor = -1
        self._inquiry = Inquiry()
        self._turned_away: set[tuple[int, Held]] = set()
        self._out: list[sw.ShelfDo] = []

    def handle(self, word: sw.ShelfWord) -> list[sw.ShelfDo]:
        """What is to be done now, in this order. A word about what is over changes nothing."""
        self._out = []
        self._heed(word)
        if self._inquiry.questions and not self._is_waiting():
            self._out += self._inquiry.answers(self.kept(self.asked_in))
        return self._out

    @property
    def asked_in(self) -> int:
        """The newest generation that was asked for, -1 if none was."""
        return self._inquiry.asked_in

    def kept(self, generation: int) -> tuple[sw.KeptSlot, ...]:
        """What is sealed of this generation and those before it, and cannot change any more."""
        return tuple(
            one
            for lease in self.leases.values()
            if lease.generation <= generation
            for one in lease.kept()
        )

    def find(self, generation: int, step: int, held: Held) -> sw.KeptSlot | None:
        for one in self.kept(generation):
            if (one.generation, one.step, one.held) == (generation, step, held):
                return one
        return None

    def is_over(self, generation: int) -> bool:
        """Whether slots of this generation must not change any more: they have been asked for."""
        return self._inquiry.is_over(generation)

    def watched(self) -> list[int]:
        """The leases whose mappers may live although nobody counts on them."""
        return self._inquiry.watched(self.leases)

    def _heed(self, word: sw.ShelfWord) -> None:
        if isinstance(word, sw.Claimed):
            self._claim(word.lease, word.claim)
        elif isinstance(word, sw.VaultAsked):
            self._ask(word.generation)
        elif isinstance(word, sw.WaitedEnough):
            self._out += self._inquiry.wait_no_more(self.leases)
        elif word.lease in self.leases:
            _HEEDED[type(word)](self, self.leases[word.lease], word)
            self._tidy(word.lease)
        else:
            self._turn_away(word)

    def _turn_away(self, word: sw.OfLease) -> None:
        """Of a lease that is no more: what it brings goes, and who waits is told."""
        if isinstance(word, sw.RoomGiven):
            self._out.append(sw.FreeSlots(slots=word.slots))
        elif isinstance(word, sw.Rescued) and word.slot is not None:
            self._out.append(sw.FreeSlots(slots=(word.slot,)))
        elif isinstance(word, sw.HungUp):
            self._out.append(sw.EndCopies(lease=word.lease))
        elif isinstance(word, (sw.PutOffered, sw.PutArrived)):
            self._out.append(sw.RefusePut(lease=word.lease))

    # Leases and room.

    def _claim(self, number: int, claim: sw.Claim) -> None:
        if self.is_over(claim.generation) or number in self.leases:
            self._out.append(sw.Refuse(lease=number, reason=""))
            return
        self._turned_away = {one for one in self._turned_away if one[0] >= claim.generation}
        for older, lease in list(self.leases.items()):
            if lease.generation < claim.generation:
                lease.abandon(claim.from_step)
                self._tidy(older)
        self.leases[number] = Lease(claim=claim)
        self._make_room(number, claim, NUM_SLOTS)

    def _make_room(self, number: int, claim: sw.Claim, count: int) -> None:
        self._out.append(sw.MakeRoom(lease=number, count=count, size_bytes=claim.size_bytes))

    def _take_room(self, lease: Lease, given: sw.RoomGiven) -> None:
        number, claim = given.lease, lease.claim
        lease.places += [LeasedSlot(slot=slot) for slot in given.slots]
        missing = NUM_SLOTS - len(lease.places)
        if lease.hung_up or self.is_over(lease.generation):
            self._refuse(number, lease, "")
            return
        if given.lack and missing:
            if self._do_without_one(claim):
                self._make_room(number, claim, missing)
                return
            if len(lease.places) < claim.least_slots:
                self._turned_away.add((claim.generation, claim.held))
                self._refuse(number, lease, given.lack)
                return
        lease.granted, lease.mapped = True, not claim.guest
        lease.copied = claim.copied
        slots = tuple(place.slot for place in lease.places)
        self._out.append(sw.Grant(lease=number, slots=slots))

    def _refuse(self, number: int, lease: Lease, reason: str) -> None:
        del self.leases[number]
        slots = tuple(place.slot for place in lease.places)
        self._out += [sw.FreeSlots(slots=slots), sw.Refuse(lease=number, reason=reason)]

    def _do_without_one(self, claim: sw.Claim) -> bool:
        """Free the oldest generation that never had anything stable, if there is one.

        None that the claim's may begin from: others of it may still read there. Whoever claims once
        more has made steps since, and so have they.
        """
        again = (claim.generation, claim.held) in self._turned_away
        for number, lease in self.leases.items():
            spare = 0 <= self.anchor < lease.generation < claim.generation
            if spare and lease.is_left and (again or not lease.has(claim.from_step)):
                lease.give_up()
                self._tidy(number)
                return True
        return False

    def _tidy(self, number: int) -> None:
        """Give back what no mapper has and nobody needs."""
        lease = self.leases.get(number)
        if lease is None or not lease.is_left:
            return
        freed = lease.take_back()
        if freed:
            self._out.append(sw.FreeSlots(slots=freed))
        if all(place.slot == NOWHERE for place in lease.places):
            del self.leases[number]
            if lease.copied:
                self._out.append(sw.EndCopies(lease=number))

    # What the rank of the lease says.

    def _may_change(self, lease: Lease) -> bool:
        return lease.is_open and not lease.unneeded and not self.is_over(lease.generation)

    def _seal(self, lease: Lease, word: sw.CopiedWhole) -> None:
        place = lease.at(word.number)
        if self._may_change(lease) and place is not None and not place.proving:
            self._prove(word.lease, word.number, place, word.step)

    def _prove(self, lease: int, number: int, place: LeasedSlot, step: int) -> None:
        place.state, place.step, place.proving = SlotState.COPIED, step, True
        received = self.leases[lease].claim.guest
        self._out.append(
            sw.Prove(lease=lease, number=number, slot=place.slot, step=step, received=received)
        )

    def _proved(self, lease: Lease, word: sw.Proved) -> None:
        place = lease.at(word.number)
        if place is None or not place.proving or place.step != word.step:
            return
        place.proving = False
        late = lease.unneeded or lease.rescued or word.step > lease.up_to
        if not word.error and not late:
            place.state = SlotState.SEALED
        if lease.claim.guest:
            over = "it is not needed any more" if late else ""
            self._out.append(sw.AnswerPut(lease=word.lease, error=word.error or over))
        elif word.error:
            spoilt = SlotSpoilt(slot=word.number, error=word.error)
            self._out += copies.to_rank(word.lease, lease, spoilt)
        elif not late:
            sealed = SlotSealed(slot=word.number, step=word.step)
            self._out += copies.to_rank(word.lease, lease, sealed)
            self._out += copies.sent_on(word.lease, lease, (word.number, word.step))

    def _stable(self, lease: Lease, word: sw.StableSaid) -> None:
        """Earlier generations are not needed any more, nor what this rank had before it began anew.

        Unless they have been told of meanwhile: then they stay for the next generation. What others
        had before they began anew may be the stable snapshot itself: each says it of its own.
        """
        generation = lease.generation
        if self.is_over(generation):
            return
        self.anchor = max(self.anchor, generation)
        for older, other in list(self.leases.items()):
            own = other.claim.of_rank == lease.claim.of_rank and older < word.lease
            if own or other.generation < generation:
                other.give_up()
                self._tidy(older)
        self._out.append(sw.TrimFree())
        if lease.copied:
            self._out.append(sw.SendStable(lease=word.lease))

    def _hung_up(self, lease: Lease, word: sw.HungUp) -> None:
        lease.hung_up = True
        if lease.mapped:
            self._out.append(sw.WatchMapper(lease=word.lease))
        elif not lease.queue:
            self._out.append(sw.EndCopies(lease=word.lease))

    def _let_go(self, lease: Lease, word: sw.LetGo) -> None:
        """Seal what the mapper had copied whole; what it had begun to write is nothing."""
        if not lease.mapped:
            return
        lease.mapped = False
        if lease.rescued:
            return
        for index, (place, said) in enumerate(zip(lease.places, word.words, strict=True)):
            if place.proving:
                continue
            if said.state is SlotState.COPIED and not lease.unneeded and said.step <= lease.up_to:
                self._prove(word.lease, index, place, said.step)
            elif said.state is not SlotState.SEALED or not lease.is_there(index, said.step):
                place.drop()

    # Copies that go to the buddy.

    def _copy_taken(self, lease: Lease, word: sw.CopyTaken) -> None:
        self._out += copies.taken(word.lease, lease)

    def _copies_refused(self, lease: Lease, word: sw.CopiesRefused) -> None:
        self._out += copies.refused(word.lease, lease, word.error)

    # Copies that come from the vault whose buddy this one is.

    def _take_in(self, lease: Lease, put: sw.PutOffered) -> None:
        place = lease.at(put.number)
        free = place is not None and place.state is not SlotState.WRITING and not place.proving
        if place is None or not free or not lease.claim.guest or not self._may_change(lease):
            self._out.append(sw.RefusePut(lease=put.lease))
            return
        place.state, place.step = SlotState.WRITING, put.step
        self._out.append(
            sw.TakeIn(lease=put.lease, number=put.number, slot=place.slot, step=put.step)
        )

    def _arrived(self, lease: Lease, put: sw.PutArrived) -> None:
        place = lease.at(put.number)
        if place is None or place.state is not SlotState.WRITING or not self._may_change(lease):
            self._out.append(sw.RefusePut(lease=put.lease))
        else:
            self._prove(put.lease, put.number, place, place.step)

    # What the controller asks.

    def _ask(self, generation: int) -> None:
        self._inquiry.ask(generation)
        for number in self.watched():
            if not self.leases[number].rescued:
                self._out.append(sw.WatchMapper(lease=number))

    def _is_waiting(self) -> bool:
        return self._inquiry.is_waiting(self.leases)

    def _rescued(self, lease: Lease, word: sw.Rescued) -> None:
        self._out += rescued(lease, word)


_HEEDED: Mapping[type[Any], Callable[[Shelf, Lease, Any], None]] = {
    sw.RoomGiven: Shelf._take_room,  # noqa: SLF001 - the table of its own methods
    sw.CopiedWhole: Shelf._seal,  # noqa: SLF001
    sw.PutOffered: Shelf._take_in,  # noqa: SLF001
    sw.PutArrived: Shelf._arrived,  # noqa: SLF001
    sw.Proved: Shelf._proved,  # noqa: SLF001
    sw.CopyTaken: Shelf._copy_taken,  # noqa: SLF001
    sw.CopiesRefused: Shelf._copies_refused,  # noqa: SLF001
    sw.StableSaid: Shelf._stable,  # noqa: SLF001
    sw.HungUp: Shelf._hung_up,  # noqa: SLF001
    sw.LetGo: Shelf._let_go,  # noqa: SLF001
    sw.Rescued: Shelf._rescued,  # noqa: SLF001
}
