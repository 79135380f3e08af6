"""What vaults, workers and restores say to each other, as values that the codec knows.

A worker leases slots and has them sealed, in the words of orchestrator/vault; a vault hands copies
to its buddy; a restore reads a header and ranges. Numbers name slots by their place in the lease.
Whole numbers are checked by the line on which they arrive: none is negative.
"""

from dataclasses import dataclass

from remesh.orchestrator.vault.vault_words import ToRank, ToVault
from remesh.parallel.plan.cut import Held


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
class PutCopy:
    """A sealed snapshot for this slot of the buddy; its bytes follow."""

    slot: int
    step: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The buddy has done what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderFollows:
    """Behind it come the first bytes of a slot; `digest` proves them. `path` is its file's, which
    is there for whoever is on the same node.
    """

    digest: str
    size_bytes: int
    header_bytes: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFollows:
    length: int


Message = (
    ToVault
    | ToRank
    | KeepCopies
    | ReadHeader
    | ReadRange
    | PutCopy
    | Granted
    | HeaderFollows
    | RangeFollows
)
