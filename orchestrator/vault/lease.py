"""A lease of slots as its vault knows it: which are sealed, and what of them goes to the buddy."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from remesh.orchestrator.vault.shelf_words import Claim, KeptSlot
from remesh.orchestrator.vault.vault_words import SlotState

NOWHERE = -1
ALL_STEPS = 2**53


@dataclass(slots=True, kw_only=True)
class LeasedSlot:
    """A slot of a lease, NOWHERE once it was handed on. `proving`: what lies there is hashed."""

    slot: int
    state: SlotState = SlotState.FREE
    step: int = -1
    proving: bool = False

    def drop(self) -> None:
        """What lies in it counts no more."""
        self.state, self.step = SlotState.FREE, -1


@dataclass(slots=True, kw_only=True)
class Lease:
    """`mapped` while a mapper of its slots may live, `hung_up` once nobody talks for it any more.

    Steps after `up_to` are abandoned; `unneeded` is all that it has. `rescued`: it was told of
    although a mapper may live, and what counts of it are copies, in the place of the slots of
    memory in `haunted`. `queue` are the sealed ones that are to go to the buddy, with their steps,
    the first of them on its way; none are while it is not `copied`.
    """

    claim: Claim
    places: list[LeasedSlot] = field(default_factory=list)
    granted: bool = False
    mapped: bool = False
    hung_up: bool = False
    up_to: int = ALL_STEPS
    unneeded: bool = False
    rescued: bool = False
    rescuing: set[int] = field(default_factory=set)
    haunted: set[int] = field(default_factory=set)
    copied: bool = False
    queue: list[tuple[int, int]] = field(default_factory=list)

    @property
    def generation(self) -> int:
        return self.claim.generation

    @property
    def is_open(self) -> bool:
        """Whether somebody may still put snapshots into it."""
        return self.granted and not self.hung_up and (self.mapped or self.claim.guest)

    @property
    def is_at_work(self) -> bool:
        return bool(self.rescuing) or any(place.proving for place in self.places)

    @property
    def is_left(self) -> bool:
        """Whether nobody can write to its slots any more, or reads them to prove them."""
        left = self.hung_up if self.claim.guest else not self.mapped
        return self.granted and left and not self.is_at_work

    def in_memory(self) -> tuple[int, ...]:
        """The slots that a mapper may have, by number."""
        return tuple(sorted(self.haunted)) or tuple(place.slot for place in self.places)

    def at(self, number: int) -> LeasedSlot | None:
        return self.places[number] if 0 <= number < len(self.places) else None

    def is_there(self, number: int, step: int) -> bool:
        place = self.at(number)
        return place is not None and place.state is SlotState.SEALED and place.step == step

    def has(self, step: int) -> bool:
        """Whether a snapshot of this step is there."""
        return any(self.is_there(number, step) for number in range(len(self.places)))

    def kept(self) -> Iterator[KeptSlot]:
        """What is sealed where nobody can write to it any more."""
        if self.mapped and not self.rescued:
            return
        for place in self.places:
            if place.state is SlotState.SEALED and place.slot not in self.haunted:
                yield KeptSlot(
                    generation=self.generation,
                    step=place.step,
                    held=self.claim.held,
                    slot=place.slot,
                )

    def abandon(self, from_step: int) -> None:
        """A newer generation has begun from there."""
        self.up_to = min(self.up_to, from_step)
        for place in self.places:
            if place.step > self.up_to and not place.proving:
                place.drop()

    def give_up(self) -> None:
        """Nothing of it is needed any more."""
        self.unneeded = True
        for place in self.places:
            place.drop()

    def take_back(self) -> tuple[int, ...]:
        """The slots that may be handed on: nothing needed lies in them, and nobody writes there."""
        if not self.is_left:
            return ()
        idle = [place for place in self.places if place.state is not SlotState.SEALED]
        freed = [*(place.slot for place in idle if place.slot not in self.haunted), *self.haunted]
        self.haunted = set()
        for place in idle:
            place.slot = NOWHERE
        return tuple(sorted(slot for slot in freed if slot != NOWHERE))
