"""What a rank does about its snapshots, as its machine says: whom to tell, what to map."""

from dataclasses import dataclass

from remesh.orchestrator.vault.vault_words import LeaseSlots, ToVault


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultWays:
    """Addresses of vaults, empty where there is none: that of the own node, and the buddy's."""

    own: str
    buddy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLine:
    """To the vault at this address, and say `first`. What it says, and that it ends, follows."""

    address: str
    first: LeaseSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLine:
    """Let go of the slots too: nothing of them is touched from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSlot:
    """Map this file; that it is mapped, or cannot be, follows."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SayVault:
    word: ToVault


@dataclass(frozen=True, slots=True, kw_only=True)
class SayPaused:
    """There are no snapshots for a while: let the controller know why."""

    reason: str


RankDo = OpenLine | CloseLine | MapSlot | SayVault | SayPaused
