"""What the controller asks a vault for, and whom the vault waits for before it tells.

Generations that it was asked for are over: nothing of them changes any more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.lease import Lease
from remesh.orchestrator.vault.vault_words import SlotState

Leases = Mapping[int, Lease]


@dataclass(slots=True)
class Inquiry:
    """`questions` are the generations that are asked for and not told of; `waited`: long enough."""

    asked_in: int = -1
    questions: list[int] = field(default_factory=list)
    waited: bool = False

    def is_over(self, generation: int) -> bool:
        return generation <= self.asked_in

    def ask(self, generation: int) -> None:
        self.asked_in = max(self.asked_in, generation)
        self.questions.append(generation)

    def watched(self, leases: Leases) -> list[int]:
        """The leases whose mappers may live although nobody counts on them."""
        return [
            number
            for number, lease in leases.items()
            if lease.mapped and (lease.hung_up or self.is_over(lease.generation))
        ]

    def wait_no_more(self, leases: Leases) -> Iterator[sw.ShelfDo]:
        """Copies take the place of what a mapper may still write to."""
        if not self.questions:
            return
        self.waited = True
        for number, lease in leases.items():
            if lease.mapped and not lease.rescued and self.is_over(lease.generation):
                yield from _rescue(number, lease)

    def is_waiting(self, leases: Leases) -> bool:
        """Whether somebody has not let go yet, or a snapshot is being sealed, of what is asked."""
        asked = [lease for lease in leases.values() if self.is_over(lease.generation)]
        if self.waited:
            return any(lease.rescuing for lease in asked)
        held = any(lease.mapped and not lease.rescued for lease in asked)
        return held or any(lease.is_at_work for lease in asked)

    def answers(self, kept: Sequence[sw.KeptSlot]) -> list[sw.TellSlots]:
        """`kept` are the slots that are told of, to each that has asked."""
        told = [sw.TellSlots(generation=one, slots=tuple(kept)) for one in self.questions]
        self.questions, self.waited = [], False
        return told


def rescued(lease: Lease, word: sw.Rescued) -> Iterator[sw.ShelfDo]:
    """A copy has been made, or could not be."""
    place = lease.at(word.number)
    if place is None or word.number not in lease.rescuing:
        if word.slot is not None:
            yield sw.FreeSlots(slots=(word.slot,))
        return
    lease.rescuing.discard(word.number)
    if word.slot is None:
        place.drop()
    else:
        place.slot = word.slot


def _rescue(number: int, lease: Lease) -> Iterator[sw.ShelfDo]:
    lease.rescued = True
    lease.haunted = {place.slot for place in lease.places}
    lease.queue.clear()
    for index, place in enumerate(lease.places):
        if place.state is SlotState.SEALED:
            lease.rescuing.add(index)
            yield sw.RescueSlot(lease=number, number=index, slot=place.slot, step=place.step)
