"""What one rank starts in a group, as its peers must know it to have started the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MIRRORED = {"send": "receive", "receive": "send"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An operation of one rank. `sends` and `receives` are elements by rank of the group.

    `peers` are all others whom it takes, also those to whom nothing goes.
    """

    kind: str
    dtype: str
    peers: tuple[int, ...]
    sends: tuple[int, ...]
    receives: tuple[int, ...]

    def difference(self, rank: int, other: "Described", other_rank: int) -> str:
        """In what it does not fit what `other_rank` does; nothing if the two are one operation."""
        if _MIRRORED.get(self.kind, self.kind) != other.kind:
            return "operation"
        if self.dtype != other.dtype:
            return "dtype"
        there = self.sends[other_rank], other.receives[rank]
        back = self.receives[other_rank], other.sends[rank]
        if any(bool(one) != bool(two) for one, two in (there, back)):
            return "peers"
        return "" if there[0] == there[1] and back[0] == back[1] else "size"

    def text(self, names: Sequence[int]) -> str:
        """`names` are the ranks of the group as a reader knows them."""
        sizes = {*self.sends, *self.receives} - {0} or {0}
        size = str(*sizes) if len(sizes) == 1 else self._sizes()
        ways = {(True, False): "to", (False, True): "from"}
        towards = ways.get((any(self.sends), any(self.receives)), "with")
        met = [peer for peer in self.peers if self.sends[peer] or self.receives[peer]]
        peers = ", ".join(str(names[peer]) for peer in met or self.peers)
        return f"{self.kind} of {size} {self.dtype} {towards} {peers}"

    def _sizes(self) -> str:
        return f"{list(self.sends)} for {list(self.receives)}"

    def to_numbers(self) -> list[Any]:
        return [self.kind, self.dtype, self.peers, self.sends, self.receives]

    @staticmethod
    def from_numbers(numbers: Sequence[Any]) -> "Described":
        kind, dtype, peers, sends, receives = numbers
        return Described(
            kind=kind,
            dtype=dtype,
            peers=tuple(peers),
            sends=tuple(sends),
            receives=tuple(receives),
        )
