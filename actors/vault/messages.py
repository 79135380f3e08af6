"""What vaults, workers and restores say to each other, as values that the codec knows.

A worker leases slots and has them sealed; a vault hands copies to its buddy; a restore reads a
header and ranges. Numbers name slots by their place in the lease. Whole numbers are checked by the
line on which they arrive: none is negative.
"""

from dataclasses import dataclass

from remesh.parallel.plan.cut import Held


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
class KeepCopies:
    """A vault asks its buddy for as many slots as its worker has."""

    generation: int
    held: Held
    size_bytes: int
    from_step: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHeader:
    """A restore asks for the first bytes of a slot."""

    generation: int
    step: int
    held: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """A restore asks for `length` bytes of a slot from `start` on."""

    generation: int
    step: int
    held: Held
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSlot:
    """A worker has copied its state whole into this slot."""

    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutCopy:
    """A sealed snapshot for this slot of the buddy; its bytes follow."""

    slot: int
    step: int
    digest: str


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
class Granted:
    """The buddy has done what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderFollows:
    """Behind it come the first bytes of a slot; `digest` proves them."""

    digest: str
    size_bytes: int
    header_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFollows:
    length: int


Message = (
    LeaseSlots
    | KeepCopies
    | ReadHeader
    | ReadRange
    | SealSlot
    | PutCopy
    | NowStable
    | SlotsLeased
    | SlotSealed
    | SlotSafe
    | SlotSpoilt
    | LeftAlone
    | Granted
    | Refused
    | HeaderFollows
    | RangeFollows
)
