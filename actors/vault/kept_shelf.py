"""The shelf of a vault in life: its machine with a lock, memory and threads around.

What is quick is done with the lock held, so that memory and machine never disagree; hashing and
copying are not, in the thread that said what led to them. What is for whoever has a lease goes to
the ears of that lease.
"""

import itertools
import threading
import time
from dataclasses import dataclass
from typing import Protocol, assert_never, get_args

from remesh.actors.vault.proving import Proof, admit, copy_over, seal
from remesh.actors.vault.slot_memory import SlotMemory
from remesh.actors.vault.vault_memory import NoRoomError, VaultMemory
from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.shelf import Shelf
from remesh.orchestrator.vault.vault_words import SlotState
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.root_manifest import CheckpointRef

_LOOK_EVERY_S = 0.01
_LOOKS = 50  # at one whose line has ended


class LeaseEars(Protocol):
    """Whoever has a lease: what the shelf has done for it, in any thread."""

    def hear(self, do: sw.ForTenant) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSlot:
    """A snapshot that is whole, and nobody can write to, with what proves it."""

    kept: sw.KeptSlot
    proof: Proof
    memory: SlotMemory


class KeptShelf:
    """For any number of threads."""

    def __init__(self, memory: VaultMemory) -> None:
        self._memory = memory
        self._machine = Shelf()
        self._changed = threading.Condition()
        self._asking = threading.Lock()
        self._leases = itertools.count(1)
        self._numbers = itertools.count(1)
        self._slots: dict[int, SlotMemory] = {}
        self._proofs: dict[int, Proof] = {}
        self._digests: dict[tuple[int, int], str] = {}
        self._ears: dict[int, LeaseEars] = {}
        self._answers: dict[int, tuple[sw.KeptSlot, ...]] = {}

    def claim(self, claim: sw.Claim, ears: LeaseEars) -> int:
        """The number of a lease; its ears hear Grant or Refuse before this returns."""
        self._look_at_all()
        lease = next(self._leases)
        self._ears[lease] = ears
        self.say(sw.Claimed(lease=lease, claim=claim))
        return lease

    def hang_up(self, lease: int) -> None:
        """Nobody talks for it any more; what had been copied whole is sealed before this ends.

        Unless its mapper lives on: then that is looked at whenever slots are asked for. Of one that
        dies the line may end a moment before its memory is gone.
        """
        self.say(sw.HungUp(lease=lease))
        for _ in range(_LOOKS):
            if lease not in self._watched():
                return
            time.sleep(_LOOK_EVERY_S)
            self._look(lease)

    def forget(self, lease: int) -> None:
        """Its ears hear nothing more."""
        self._ears.pop(lease, None)

    def copied(self, lease: int, number: int) -> None:
        """The worker says so; the step stands in the slot."""
        slot = self._slot(lease, number)
        if slot is not None:
            self.say(sw.CopiedWhole(lease=lease, number=number, step=slot.step))

    def arrived(self, lease: int, number: int, digest: str) -> None:
        """A copy of another vault's snapshot, of which that has told the digest."""
        self._digests[lease, number] = digest
        self.say(sw.PutArrived(lease=lease, number=number))

    def told(self, generation: int, limit_s: float) -> list[sw.KeptSlot]:
        """What is sealed of this generation and before, and cannot change any more.

        Once those who may write have let go of it and what is being sealed is sealed; what is still
        mapped after the limit is copied.
        """
        deadline_s = time.monotonic() + limit_s
        with self._asking:
            self.say(sw.VaultAsked(generation=generation))
            while (told := self._answer(generation)) is None:
                if time.monotonic() >= deadline_s:
                    self.say(sw.WaitedEnough())
                self._look_at_all()
            return list(told)

    def _answer(self, generation: int) -> tuple[sw.KeptSlot, ...] | None:
        """The answer to that question, after a short wait if it is not there yet."""
        with self._changed:
            if generation not in self._answers:
                self._changed.wait(_LOOK_EVERY_S)
            return self._answers.pop(generation, None)

    def find(self, generation: int, step: int, held: Held) -> SealedSlot | None:
        with self._changed:
            kept = self._machine.find(generation, step, held)
            return None if kept is None else self._sealed(kept)

    def sealed(self, lease: int, number: int, step: int) -> SealedSlot | None:
        """What is to go to the buddy, if it is still there."""
        with self._changed:
            found = self._machine.leases.get(lease)
            if found is None or not found.is_there(number, step):
                return None
            return self._sealed(
                sw.KeptSlot(
                    generation=found.generation,
                    step=step,
                    held=found.claim.held,
                    slot=found.places[number].slot,
                )
            )

    def memory_of(self, slot: int) -> SlotMemory:
        return self._slots[slot]

    def say(self, word: sw.ShelfWord) -> None:
        """Tell the machine, and do what follows."""
        with self._changed:
            dos = self._machine.handle(word)
            for do in dos:
                if isinstance(do, get_args(sw.ForMemory)):
                    self._keep_in_step(do)
                elif isinstance(do, sw.Grant):
                    self._offer(do)
            self._changed.notify_all()
        for do in dos:
            if isinstance(do, get_args(sw.TakesLong)):
                self._carry_out(do)
            elif isinstance(do, get_args(sw.ForTenant)) and do.lease in self._ears:
                self._ears[do.lease].hear(do)

    def _keep_in_step(self, do: sw.ForMemory) -> None:
        """With the lock held."""
        match do:
            case sw.FreeSlots():
                for slot in do.slots:
                    self._proofs.pop(slot, None)
                    self._memory.give_back(self._slots.pop(slot))
            case sw.TrimFree():
                self._memory.trim()
            case sw.TellSlots():
                self._answers[do.generation] = do.slots
            case _:
                assert_never(do)

    def _offer(self, do: sw.Grant) -> None:
        if not self._machine.leases[do.lease].claim.guest:
            for slot in do.slots:
                self._memory.offer(self._slots[slot])

    def _carry_out(self, do: sw.TakesLong) -> None:
        match do:
            case sw.MakeRoom():
                self._make_room(do)
            case sw.Prove():
                self._prove(do)
            case sw.RescueSlot():
                self._rescue(do)
            case sw.WatchMapper():
                self._look(do.lease)
            case _:
                assert_never(do)

    def _make_room(self, do: sw.MakeRoom) -> None:
        found, lack = [], ""
        for _ in range(do.count):
            try:
                memory = self._memory.take(do.size_bytes)
            except NoRoomError as error:
                lack = error.strerror or str(error)
                break
            memory.state = SlotState.FREE
            found.append(self._numbered(memory))
        self.say(sw.RoomGiven(lease=do.lease, slots=tuple(found), lack=lack))

    def _numbered(self, memory: SlotMemory) -> int:
        with self._changed:
            number = next(self._numbers)
            self._slots[number] = memory
        return number

    def _prove(self, do: sw.Prove) -> None:
        error = ""
        slot = self._slots[do.slot]
        try:
            if do.received:
                proof = admit(slot, do.step, self._digests.pop((do.lease, do.number), ""))
            else:
                generation = self._machine.leases[do.lease].generation
                proof = seal(slot, CheckpointRef(step=do.step, generation=generation))
            self._proofs[do.slot] = proof
        except CheckpointError as failure:
            error = str(failure) or type(failure).__name__
        self.say(sw.Proved(lease=do.lease, number=do.number, step=do.step, error=error))

    def _rescue(self, do: sw.RescueSlot) -> None:
        """Copy first and prove then: whatever is written meanwhile is in the proof, or too late."""
        source, rescued = self._slots[do.slot], None
        proof = self._proofs.get(do.slot)
        if proof is not None and source.step == do.step and source.state is SlotState.SEALED:
            rescued = self._proven_copy(source, do.step, proof)
        self.say(sw.Rescued(lease=do.lease, number=do.number, slot=rescued))

    def _proven_copy(self, source: SlotMemory, step: int, proof: Proof) -> int | None:
        try:
            target = self._memory.take(source.size_bytes)
        except NoRoomError:
            return None
        copy_over(source, target)
        try:
            proof = admit(target, step, proof.digest)
        except CheckpointError:
            self._memory.give_back(target)
            return None
        number = self._numbered(target)
        self._proofs[number] = proof
        return number

    def _look_at_all(self) -> None:
        for lease in self._watched():
            self._look(lease)

    def _watched(self) -> list[int]:
        with self._changed:
            return self._machine.watched()

    def _look(self, lease: int) -> None:
        """Say so if nobody has the slots of this lease mapped any more."""
        with self._changed:
            found = self._machine.leases.get(lease)
            if found is None or not found.mapped:
                return
            slots = [self._slots[slot] for slot in found.in_memory()]
            if any(not gone for gone in [slot.withdraw() for slot in slots]):
                return
            words = tuple(slot.word for slot in slots)
        self.say(sw.LetGo(lease=lease, words=words))

    def _slot(self, lease: int, number: int) -> SlotMemory | None:
        with self._changed:
            found = self._machine.leases.get(lease)
            place = found.at(number) if found else None
            return None if place is None else self._slots.get(place.slot)

    def _sealed(self, kept: sw.KeptSlot) -> SealedSlot:
        return SealedSlot(kept=kept, proof=self._proofs[kept.slot], memory=self._slots[kept.slot])
