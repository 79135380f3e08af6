"""What a rank and the vault of its node say to each other. Numbers name slots in a lease."""

from dataclasses import dataclass
from enum import IntEnum

from remesh.parallel.plan.cut import Held


class SlotState(IntEnum):
    """How far a slot is. A worker says that it writes and has written, a vault that it is sealed.

    These are the words in shared memory before a snapshot.
    """

    FREE = 0
    WRITING = 1
    COPIED = 2
    SEALED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWord:
    """What stands before a snapshot."""

    state: SlotState = SlotState.FREE
    step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSlots:
    """A worker asks for slots on its node; copies go to `buddy`, which is empty if there is none.

    Steps of earlier generations after `from_step` are abandoned.
    """

    generation: int
    held: Held
    size_bytes: int
    from_step: int
    buddy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSlot:
    """A worker has copied its state whole into this slot."""

    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NowStable:
    """All ranks have a safe snapshot of this generation: earlier ones may be forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsLeased:
    """The files of the slots, by number."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSealed:
    slot: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSafe:
    """The buddy has a copy."""

    slot: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpoilt:
    """What was copied is no snapshot."""

    slot: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftAlone:
    """The buddy takes no copies; the vault still has the snapshots."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOver:
    """Nothing of this generation is taken in any more. That is no reason to do without a buddy."""


ToVault = LeaseSlots | SealSlot | NowStable
ToRank = SlotsLeased | SlotSealed | SlotSafe | SlotSpoilt | LeftAlone | Refused | GenerationOver
