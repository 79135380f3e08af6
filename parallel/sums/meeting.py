"""Where ranks on one host meet once a step: each says where its nodes lie, and reads the others'.

A rank adds up its piece of all nodes out of the memory of those that have them, in the tree's
order, and puts it where that piece of its own first node was; then all say that their pieces are
there, and copy them. Who changes its sum before the vote of the step says once more that it has
copied. Two or three small messages to each other rank, however many buckets there are, and they
are waited for as any others: so what ends a group ends this too. What lost: a message for each
bucket beside backward, which costs more than it hides, as the sums are this process's own work
here; and counters in the shared memory, with which a rank would have to find out by itself that
another one is dead.

The nodes and the sum may be overwritten after a vote of all ranks, which ends each step: by then
all have copied.
"""

from collections.abc import Sequence
from typing import Protocol

from remesh.parallel.groups.collectives import told_numbers
from remesh.parallel.groups.group import Group
from remesh.parallel.pages.own_pages import OwnPages
from remesh.parallel.pages.shared_pages import SharedPages


class MeetingPart(Protocol):
    """One lane's part in a meeting: `num_told` numbers that it says, and what it reads.

    Of its nodes others read `nodes_bytes` each, of its piece of the sum `piece_bytes`.
    """

    num_told: int
    nodes_bytes: int
    piece_bytes: int

    def told(self) -> list[int]: ...

    def add_up(self, heard: Sequence[Sequence[int]]) -> None:
        """Knowing what each rank has told."""
        ...

    def gather(self) -> None: ...


class SumMeeting:
    """Of the ranks of `data`, of which those of `replica` own the same shard, for all their lanes.

    Their nodes lie in `own` pages, and those of the others in `shared` ones. `changes`: they change
    their sums before they vote.
    """

    def __init__(
        self,
        data: Group,
        replica: Group,
        shared: SharedPages,
        own: OwnPages,
        *,
        changes: bool = True,
    ) -> None:
        self.shared = shared
        self._changes = changes
        self.own = own
        self._data = data
        self._replica = replica
        self._readers: list[MeetingPart] = []
        self._is_held = False

    def join(self, reader: MeetingPart) -> None:
        """All ranks join for the same lanes in one order."""
        self._readers.append(reader)

    def hold(self) -> None:
        """Makes the sums of all lanes, the first time in a step. Raises: Cancelled, GroupError."""
        if self._is_held:
            return
        self._is_held = True
        numbers = [number for reader in self._readers for number in reader.told()]
        nodes_bytes = sum(reader.nodes_bytes for reader in self._readers)
        heard = _tell(self._data, numbers, nodes_bytes)
        first = 0
        for reader in self._readers:
            reader.add_up([row[first : first + reader.num_told] for row in heard])
            first += reader.num_told
        if self._replica.size > 1:
            _tell(self._replica, [0], sum(reader.piece_bytes for reader in self._readers))
            for reader in self._readers:
                reader.gather()
            if self._changes:
                _tell(self._replica, [0], 0)  # that what it has shown is its own again

    def clear(self) -> None:
        """Ends the step, after a vote."""
        self._is_held = False


def _tell(group: Group, numbers: Sequence[int], shown_bytes: int) -> list[list[int]]:
    """What each rank says, as many numbers. `shown_bytes` are what each of the others may read."""
    if group.size == 1:
        return [list(numbers)]
    return told_numbers(group, numbers, shown_bytes * (group.size - 1))
