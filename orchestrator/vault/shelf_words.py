"""What a shelf is told, and what it has done: the words of the machine of a vault.

A lease is known by a number that whoever asks gives it, a higher one each time, a slot of memory by
the number that memory gives it; `number` is the place of a slot in its lease.
"""

from dataclasses import dataclass

from remesh.orchestrator.vault.vault_words import SlotWord, ToRank
from remesh.parallel.plan.cut import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Slots for one rank of one generation. A `guest` is a rank of another node.

    Steps of earlier generations after `from_step` are abandoned. With fewer than `least_slots` it
    is no use. `copied`: its snapshots go on to a buddy.
    """

    generation: int
    held: Held
    size_bytes: int
    from_step: int
    guest: bool = False
    least_slots: int = 1
    copied: bool = False

    @property
    def of_rank(self) -> tuple[int, Held, bool]:
        """What all claims of one rank in one generation have in common, whatever its buddy."""
        return self.generation, self.held, self.guest


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSlot:
    """A snapshot that is whole, and the slot of memory where it lies."""

    generation: int
    step: int
    held: Held
    slot: int


# What a shelf is told.


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    lease: int
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomGiven:
    """Slots of memory for a lease; `lack` says why there are no more, if more were asked for."""

    lease: int
    slots: tuple[int, ...]
    lack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedWhole:
    """The worker says that it has copied its state into a slot, whose word says the step."""

    lease: int
    number: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOffered:
    """A copy of a guest's snapshot is about to come."""

    lease: int
    number: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutArrived:
    lease: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """What Prove found. Without an `error` it is a snapshot, whole."""

    lease: int
    number: int
    step: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTaken:
    """The buddy has the snapshot that was sent last, and has proven it."""

    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesRefused:
    """The buddy takes no copy more: with an `error` it cannot; without, the generation is over."""

    lease: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StableSaid:
    """A snapshot of the lease's generation is stable."""

    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HungUp:
    """Whoever has the lease says nothing more. He may live, and have the slots mapped."""

    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """Nobody has the slots mapped, and nobody can map them. `words` is what stands in each."""

    lease: int
    words: tuple[SlotWord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultAsked:
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedEnough:
    """Whoever has not let go of his slots by now is waited for no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """There is a proven copy of a slot, in `slot`; None if there cannot be one."""

    lease: int
    number: int
    slot: int | None


OfLease = (
    RoomGiven
    | CopiedWhole
    | PutOffered
    | PutArrived
    | Proved
    | CopyTaken
    | CopiesRefused
    | StableSaid
    | HungUp
    | LetGo
    | Rescued
)
ShelfWord = Claimed | VaultAsked | WaitedEnough | OfLease


# What it has done.


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeRoom:
    """RoomGiven follows."""

    lease: int
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlots:
    """These may be handed on: nobody has them mapped, and nobody needs them."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimFree:
    """Give to the system what is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    lease: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """No slots for this lease: without a `reason`, because its generation is over."""

    lease: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchMapper:
    """LetGo follows once nobody has the slots of this lease mapped."""

    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove:
    """Hash what a worker has `copied`, or compare what a vault has sent. Proved follows."""

    lease: int
    number: int
    slot: int
    step: int
    received: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRank:
    lease: int
    word: ToRank


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeIn:
    """Receive the copy that was offered into this slot. PutArrived follows."""

    lease: int
    number: int
    slot: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPut:
    """To a copy: that it is kept, or why not."""

    lease: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusePut:
    """What is offered is not taken in: the generation is over."""

    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCopy:
    """To the buddy. CopyTaken or CopiesRefused follows."""

    lease: int
    number: int
    slot: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendStable:
    """To the buddy."""

    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndCopies:
    """Nothing more goes from this lease to the buddy."""

    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueSlot:
    """Copy this slot to where no mapper reaches, and prove the copy. Rescued follows."""

    lease: int
    number: int
    slot: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TellSlots:
    """Answer the question of `generation`."""

    generation: int
    slots: tuple[KeptSlot, ...]


ForMemory = FreeSlots | TrimFree | TellSlots
TakesLong = MakeRoom | Prove | RescueSlot | WatchMapper
ForTenant = (
    Grant | Refuse | TellRank | TakeIn | AnswerPut | RefusePut | SendCopy | SendStable | EndCopies
)
ShelfDo = ForMemory | TakesLong | ForTenant
