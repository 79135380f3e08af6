"""Which of the ranks that wait do so for ever, over all groups of a mesh.

What may still happen is the least set of which this holds: a thread that waits for nothing may
start anything; an operation may go on if all before it may, and each of its peers has it, with all
before it there, or may still start it. Who waits for an operation that is not in the set, waits in
vain, whatever the others do. A cycle of waits is the simplest case.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remesh.parallel.groups.strict.sequences import GroupSequences, RankSequence

Thread = tuple[int, int]  # rank in the mesh, number of the thread there
_Number = tuple[str, int, int]  # group, place, number of the operation since the first


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWait:
    """A thread that waits for the operation of this number, counted from 1, of its sequence."""

    group: str
    place: int
    number: int


def waits_in_vain(
    groups: Mapping[str, GroupSequences],
    threads: Mapping[int, Iterable[int]],
    waits: Mapping[Thread, RankWait],
) -> list[tuple[Thread, RankWait]]:
    """`threads` are those that have been heard of, by rank in the mesh."""
    hope = _Hope(groups, threads, waits)
    while hope.grows():
        pass
    return [(thread, wait) for thread, wait in waits.items() if not hope.is_met(wait)]


class _Hope:
    """What may still happen, as far as it is known."""

    def __init__(
        self,
        groups: Mapping[str, GroupSequences],
        threads: Mapping[int, Iterable[int]],
        waits: Mapping[Thread, RankWait],
    ) -> None:
        self._groups = groups
        self._threads = threads
        self._waits = waits
        self._goes_on: set[_Number] = set()

    def is_met(self, wait: RankWait) -> bool:
        member = self._groups[wait.group].members[wait.place]
        index = wait.number - member.passed - 1
        return index < 0 or (wait.group, wait.place, wait.number) in self._goes_on

    def grows(self) -> bool:
        """Whether something more is known to be possible after one more look."""
        before = len(self._goes_on)
        for group in self._groups.values():
            for member in group.members.values():
                for index in range(len(member.waiting)):
                    if not self._may_go_on(group, member, index):
                        break
                    self._goes_on.add((group.name, member.place, member.passed + index + 1))
        return len(self._goes_on) > before

    def _may_go_on(self, group: GroupSequences, member: RankSequence, index: int) -> bool:
        peers = member.waiting[index].peers
        return all(
            peer not in group.members or self._may_join(group, member, index, group.members[peer])
            for peer in peers
        )

    def _may_join(
        self, group: GroupSequences, member: RankSequence, index: int, peer: RankSequence
    ) -> bool:
        """Whether the peer may come to the same operation. Who waits for one that has left is told
        so, and waits no longer.
        """
        if peer.has_left:
            return True
        turn = sum(peer.place in one.peers for one in list(member.waiting)[:index])
        shared = [i for i, one in enumerate(peer.waiting) if member.place in one.peers]
        if turn < len(shared):
            return self._is_free_before(group, peer, shared[turn])
        return self._may_start(peer) and self._is_free_before(group, peer, len(peer.waiting))

    def _is_free_before(self, group: GroupSequences, peer: RankSequence, index: int) -> bool:
        return not index or (group.name, peer.place, peer.passed + index) in self._goes_on

    def _may_start(self, peer: RankSequence) -> bool:
        threads = [(peer.rank, thread) for thread in self._threads.get(peer.rank, ())]
        return not threads or any(
            thread not in self._waits or self.is_met(self._waits[thread]) for thread in threads
        )
