"""Compares what all ranks of a mesh start in all of its groups, and says when each may go on.

An operation goes on once all who take part have started it, and those before it: nobody's data may
hide that two ranks mean different things. The first difference ends the mesh, and all are told it
with both sequences. So does a wait that nothing can end, in whatever groups those who cause it
wait. One referee for a mesh, since no rank and no group sees such a circle whole; what lost: ranks
that tell their partners with each message what it is, which finds a difference where one meets the
other, and hangs where they do not meet.

Pure: words in, words out, each to one rank of the mesh.
"""

from collections import defaultdict
from dataclasses import dataclass

from remesh.parallel.groups.strict.described import Described
from remesh.parallel.groups.strict.sequences import GroupSequences, RankSequence
from remesh.parallel.groups.strict.standstill import RankWait, Thread, waits_in_vain


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """To one rank. `kind`: `go`, the next operation of `group`; `lost`, a peer has left `group`;
    `wrong`, the mesh is over; `heard`, all that it has said before.
    """

    rank: int
    kind: str
    group: str = ""
    text: str = ""


class Referee:
    """Ranks are those of the mesh; places those in a group. Each method returns what to tell."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupSequences] = {}
        self._ranks: set[int] = set()
        self._threads: dict[int, set[int]] = defaultdict(set)
        self._waits: dict[Thread, RankWait] = {}
        self._verdict = ""

    def joins(self, rank: int, group: str, place: int) -> list[Ruling]:
        self._ranks.add(rank)
        sequences = self._groups.setdefault(group, GroupSequences(name=group))
        sequences.members[place] = RankSequence(place=place, rank=rank)
        return [Ruling(rank=rank, kind="wrong", text=self._verdict)] if self._is_over else []

    def starts(self, rank: int, thread: int, group: str, described: Described) -> list[Ruling]:
        sequences, member = self._find(rank, group)
        if self._is_over:
            return []
        self._threads[rank].add(thread)
        member.waiting.append(described)
        member.shown.append(sequences.described(member))
        return self._look(sequences, member) if len(member.waiting) == 1 else []

    def waits(self, rank: int, thread: int, group: str, number: int) -> list[Ruling]:
        """For the operation of this number, counted from 1, until it goes on."""
        _, member = self._find(rank, group)
        if self._is_over or number <= member.passed:
            return []
        self._waits[rank, thread] = RankWait(group=group, place=member.place, number=number)
        vain = waits_in_vain(self._groups, self._threads, self._waits)
        return self.accuses(self._standstill(vain)) if vain else []

    def leaves(self, rank: int, group: str) -> list[Ruling]:
        """What it has started there and its peers have not is never done."""
        sequences, member = self._find(rank, group)
        member.has_left = True
        member.waiting.clear()
        self._forget_waits(rank, group)
        return self._told_of_lost(sequences)

    def goes(self, rank: int) -> list[Ruling]:
        """The rank has closed its mesh, or is dead."""
        told = []
        for name, sequences in self._groups.items():
            if any(m.rank == rank and not m.has_left for m in sequences.members.values()):
                told += self.leaves(rank, name)
        self._ranks.discard(rank)
        return [answer for answer in told if answer.rank != rank]

    def accuses(self, text: str) -> list[Ruling]:
        """The mesh is over, and all are told why."""
        if self._is_over:
            return []
        self._verdict = text
        return [Ruling(rank=rank, kind="wrong", text=text) for rank in sorted(self._ranks)]

    @property
    def _is_over(self) -> bool:
        return bool(self._verdict)

    def _find(self, rank: int, group: str) -> tuple[GroupSequences, RankSequence]:
        sequences = self._groups[group]
        return sequences, next(m for m in sequences.members.values() if m.rank == rank)

    def _look(self, sequences: GroupSequences, member: RankSequence) -> list[Ruling]:
        """Whether what has become the next operation of its rank fits those of the others."""
        told: list[Ruling] = []
        fresh = [member]
        while fresh and not self._is_over:
            one = fresh.pop()
            if not one.waiting:
                continue
            found = self._first_difference(sequences, one) or self._missing(sequences, one)
            told += found
            if not found and self._is_whole(sequences, one):
                taking_part = [one, *sequences.partners(one)]
                told += [self._passed(sequences, each) for each in taking_part]
                fresh += [each for each in taking_part if each.waiting]
        return told

    def _first_difference(self, sequences: GroupSequences, one: RankSequence) -> list[Ruling]:
        for other in sequences.partners(one):
            if one.head and other.head and other.takes(one):
                what = one.head.difference(one.place, other.head, other.place)
                if what:
                    return self.accuses(_differs(sequences, one, other, what))
        return []

    def _missing(self, sequences: GroupSequences, one: RankSequence) -> list[Ruling]:
        if any(other.has_left for other in sequences.partners(one)):
            return self._told_of_lost(sequences)
        return []

    def _is_whole(self, sequences: GroupSequences, one: RankSequence) -> bool:
        """Whether all whom the operation takes have it, as their next one."""
        partners = sequences.partners(one)
        taking_part = {one.place, *(other.place for other in partners)}
        assert one.head
        return len(taking_part) == len(one.head.peers) + 1 and all(
            other.head and {other.place, *other.head.peers} == taking_part for other in partners
        )

    def _passed(self, sequences: GroupSequences, member: RankSequence) -> Ruling:
        member.waiting.popleft()
        member.passed += 1
        met = [
            thread
            for thread, wait in self._waits.items()
            if (wait.group, wait.place, wait.number)
            == (sequences.name, member.place, member.passed)
        ]
        for thread in met:
            del self._waits[thread]
        return Ruling(rank=member.rank, kind="go", group=sequences.name)

    def _told_of_lost(self, sequences: GroupSequences) -> list[Ruling]:
        """To those that have an operation with a rank that has left, and never had it."""
        told = []
        for member in sequences.members.values():
            for number, one in enumerate(member.waiting):
                gone = [sequences.members[p] for p in one.peers if p in sequences.members]
                gone = [other for other in gone if other.has_left]
                if gone and not self._is_over:
                    text = (
                        f"rank {gone[0].rank} has left the group {sequences.name} without its part "
                        f"of rank {member.rank}'s {sequences.text(member, number)}; "
                        f"{member.text()}; {gone[0].text()}"
                    )
                    told.append(
                        Ruling(rank=member.rank, kind="lost", group=sequences.name, text=text)
                    )
                    self._forget_waits(member.rank, sequences.name)
                    break
        return told

    def _forget_waits(self, rank: int, group: str) -> None:
        for thread, wait in list(self._waits.items()):
            if thread[0] == rank and wait.group == group:
                del self._waits[thread]

    def _standstill(self, vain: list[tuple[Thread, RankWait]]) -> str:
        waits, told = [], {}
        for (rank, _), wait in sorted(vain, key=lambda one: one[0]):
            sequences = self._groups[wait.group]
            next_one = sequences.text(sequences.members[wait.place])
            waits.append(f"rank {rank} waits in the group {sequences.name} for its {next_one}")
            members = sorted(sequences.members.items())
            told[sequences.name] = "; ".join(member.text() for _, member in members)
        in_groups = (f"In the group {name} {text}" for name, text in told.items())
        return f"nobody can go on: {'; '.join(waits)}. {'. '.join(in_groups)}"


def _differs(sequences: GroupSequences, one: RankSequence, other: RankSequence, what: str) -> str:
    first, second = sorted((one, other), key=lambda member: member.rank)
    return (
        f"ranks {first.rank} and {second.rank} differ in the {what} that is next in the group "
        f"{sequences.name}: rank {first.rank} has {sequences.text(first)}; rank {second.rank} has "
        f"{sequences.text(second)}. There {first.text()}; {second.text()}"
    )
