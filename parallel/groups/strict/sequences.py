"""What each rank of a group has started there, in its order, and how much of it all have."""

from collections import deque
from dataclasses import dataclass, field

from remesh.parallel.groups.strict.described import Described

_TOLD = 6  # operations of a sequence that an error shows


@dataclass(slots=True, kw_only=True)
class RankSequence:
    """One rank's operations in one group. `waiting` are those that not all of their peers have.

    `place` is its rank in the group, `rank` the one in the mesh. They go on in their order, each
    when those before it have: as on a stream of a device.
    """

    place: int
    rank: int
    waiting: deque[Described] = field(default_factory=deque)
    passed: int = 0
    shown: deque[str] = field(default_factory=lambda: deque(maxlen=_TOLD))
    has_left: bool = False

    @property
    def head(self) -> Described | None:
        return self.waiting[0] if self.waiting else None

    @property
    def num_started(self) -> int:
        return self.passed + len(self.waiting)

    def takes(self, other: "RankSequence") -> bool:
        """Whether the operation that is next here is one with `other`."""
        return bool(self.waiting) and other.place in self.waiting[0].peers

    def text(self) -> str:
        first = self.num_started - len(self.shown) + 1
        told = (f"{number} {text}" for number, text in enumerate(self.shown, start=first))
        return f"rank {self.rank} has started {', '.join(told) or 'nothing'}"


@dataclass(slots=True, kw_only=True)
class GroupSequences:
    """Those of all ranks of a group that have come so far, by their places."""

    name: str
    members: dict[int, RankSequence] = field(default_factory=dict)

    def text(self, sequence: RankSequence, number: int = 0) -> str:
        """One of the waiting operations of a rank, told with the ranks of the mesh."""
        return f"operation {sequence.passed + number + 1}, {self.described(sequence, number)}"

    def described(self, sequence: RankSequence, number: int = -1) -> str:
        one = sequence.waiting[number]
        places = range(1 + max(*one.peers, sequence.place, *self.members))
        ranks = {place: member.rank for place, member in self.members.items()}
        return one.text([ranks.get(place, place) for place in places])

    def partners(self, sequence: RankSequence) -> list[RankSequence]:
        """Who takes part in the operation that is next here, as far as they have come."""
        peers = sequence.waiting[0].peers if sequence.waiting else ()
        return [self.members[peer] for peer in peers if peer in self.members]
