"""What a rank sends and receives when state changes its cut: its own moves, and nobody else's.

Every rank knows which parts all hold and which they lack, and nothing else is said: both ends of a
move work it out by the same rule. A box that a rank lacks comes from itself if it holds it; else
from one of those that do, by its place among the ranks that lack the same and by the place of the
box in its memory. So ranks that lack the same read from different ones, and the boxes of one that
joins come from all that hold them. A sender asks for whom it is the one, and then plans for those
alone. What lost: a plan for all ranks on each, which knows the real loads and took seconds at a few
hundred ranks.

Slots of an optimizer lie as their weights do: a move is planned once and made for each of them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from remesh.parallel.holding.owned import Owned
from remesh.parallel.holding.part_layouts import PartLayouts, PartOf, parts_of
from remesh.parallel.holding.shard_state import COUNT
from remesh.parallel.plan.cut import Held
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment, whole
from remesh.parallel.state.reshard import Move, ReshardError, taken


class OwnMoves:
    """Of one rank. `held` are the parts of each, `lacking` the parts of those that want others.

    Cost: some 50 us a box that this rank sends or receives, and 10 us for each rank there is.
    """

    def __init__(
        self,
        spec: EngineSpec,
        held: Mapping[int, Sequence[Held]],
        lacking: Mapping[int, Held],
        rank: int,
    ) -> None:
        self._slots = spec.optimizer.slots
        self._layouts = PartLayouts(spec)
        self._held, self._lacking, self._rank = held, lacking, rank
        self._holders = _Side(self._layouts, held)
        self._lackers = _Side(self._layouts, {rank: (one,) for rank, one in lacking.items()})
        self._counters = sorted(rank for rank, parts in held.items() if parts)
        self._turns = {rank: number for number, rank in enumerate(sorted(lacking))}
        self._planned: dict[tuple[int, str], list[Move]] = {}

    def received(self) -> dict[int, list[Move]]:
        """By their source, which may be this rank itself.

        Raises: ReshardError if a byte is held by nobody.
        """
        moves: dict[int, list[Move]] = defaultdict(list)
        if self._rank not in self._lacking:
            return moves
        for move in self._wanted(self._rank, self._lacking[self._rank]):
            moves[self._rank_of(move)] += self._with_slots(move)
        source = self._source_of_count(self._rank)
        moves[source].append(_count(source, self._rank))
        return moves

    def sent(self) -> dict[int, list[Move]]:
        """By their destination, each in the order in which that receives from here.

        Raises: ReshardError if a byte that such a destination wants is held by nobody.
        """
        served: dict[int, set[str]] = defaultdict(set)
        for held in self._held.get(self._rank, ()):
            for part in parts_of(held):
                for name in self._layouts.names(part):
                    for destination in self._served(part, name):
                        served[destination].add(name)
        moves: dict[int, list[Move]] = defaultdict(list)
        for destination, names in served.items():
            for move in self._wanted(destination, self._lacking[destination], names):
                if move.source == self._rank != destination:
                    moves[destination] += self._with_slots(move)
        for rank in self._turns:
            if rank != self._rank and self._source_of_count(rank) == self._rank:
                moves[rank].append(_count(self._rank, rank))
        return moves

    def _wanted(
        self, destination: int, held: Held, names: Collection[str] | None = None
    ) -> Iterator[Move]:
        """The moves of weights to a rank, of these parameters or of all that it wants."""
        for part in parts_of(held):
            for name in self._layouts.names(part):
                if names is None or name in names:
                    yield from self._moves(destination, part, name)

    def _served(self, part: PartOf, name: str) -> Iterator[int]:
        """Those for whom this rank is the one, of all that hold this part, wherever they lack it.

        Some of them may have it from nearer by.
        """
        ranks = self._holders.ranks(part, name)
        own = ranks.number[self._rank]
        for owned in self._layouts.boxes(part, name):
            for meeting in self._lackers.meeting(owned.fragment):
                first = self._layouts.turn(meeting.part, meeting.owned, len(ranks.order))
                yield from meeting.ranks.order[(own - first) % len(ranks.order) :: len(ranks.order)]

    def _moves(self, destination: int, part: PartOf, name: str) -> list[Move]:
        key = (destination, name)
        if key not in self._planned:
            self._planned[key] = [
                move
                for want in self._layouts.boxes(part, name)
                for move in self._moves_to(destination, part, want)
            ]
        return self._planned[key]

    def _moves_to(self, destination: int, part: PartOf, want: Owned) -> Iterator[Move]:
        rest = [want.fragment]
        found = list(self._holders.meeting(want.fragment))
        # Stable: what a rank holds itself comes first, and else it is the order of the parts.
        found.sort(key=lambda meeting: destination not in meeting.ranks.number)
        for meeting in found:
            boxes, rest = taken(rest, meeting.common)
            for box in boxes:
                yield Move(
                    source=self._source(destination, part, want, meeting.ranks),
                    destination=destination,
                    box=box,
                    held=meeting.owned.fragment,
                    want=want.fragment,
                )
        if rest:
            raise ReshardError(
                f"nobody holds {rest[0]}, which rank {destination} needs; add a source that does, "
                "or go back to a step that is held completely"
            )

    def _source(self, destination: int, part: PartOf, want: Owned, ranks: "_Ranks") -> int:
        if destination in ranks.number:
            return destination
        lackers = self._lackers.ranks(part, want.fragment.name)
        first = self._layouts.turn(part, want, len(ranks.order))
        return ranks.order[(lackers.number[destination] + first) % len(ranks.order)]

    def _source_of_count(self, destination: int) -> int:
        if self._held.get(destination):
            return destination
        if not self._counters:
            raise ReshardError(f"nobody holds any state, which rank {destination} needs")
        return self._counters[self._turns[destination] % len(self._counters)]

    def _with_slots(self, move: Move) -> Iterator[Move]:
        """A move of weights, and the same of what the optimizer remembers of them."""
        yield move
        for slot in self._slots:
            box, held, want = (
                replace(
                    fragment, name=slot.tensor(fragment.name), dtype=slot.dtype or fragment.dtype
                )
                for fragment in (move.box, move.held, move.want)
            )
            yield replace(move, box=box, held=held, want=want)

    def _rank_of(self, move: Move) -> int:
        assert isinstance(move.source, int)
        return move.source


@dataclass(frozen=True, slots=True)
class _Ranks:
    """In ascending order, and the number of each in it."""

    order: list[int]
    number: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommonBox:
    """What a part has of a box, and the ranks that have it."""

    part: PartOf
    ranks: _Ranks
    owned: Owned
    common: Fragment


class _Side:
    """Who has which parts: of those that hold some, or of those that lack some."""

    def __init__(self, layouts: PartLayouts, held: Mapping[int, Sequence[Held]]) -> None:
        self._layouts = layouts
        self._found: dict[PartOf, list[int]] = defaultdict(list)
        for rank in sorted(held):
            for one in held[rank]:
                for part in parts_of(one):
                    self._found[part].append(rank)
        self._cuts = dict.fromkeys(part.cut for part in self._found)
        self._ranks: dict[tuple[PartOf, ...], _Ranks] = {}

    def ranks(self, part: PartOf, name: str) -> _Ranks:
        """All that have what this part has of a parameter."""
        parts = self._layouts.alike(part, name)
        if parts not in self._ranks:
            order = sorted({rank for one in parts for rank in self._found.get(one, ())})
            self._ranks[parts] = _Ranks(order, {rank: number for number, rank in enumerate(order)})
        return self._ranks[parts]

    def meeting(self, box: Fragment) -> Iterator[_CommonBox]:
        """What they have of a box, in the order of the parts."""
        for cut in self._cuts:
            for part in self._layouts.meeting(cut, box):
                ranks = self.ranks(part, box.name)
                for owned in self._layouts.boxes(part, box.name) if ranks.order else ():
                    if common := box.meet(owned.fragment):
                        yield _CommonBox(part=part, ranks=ranks, owned=owned, common=common)


def _count(source: int, destination: int) -> Move:
    count = whole(COUNT, (1,), "int64")
    return Move(source=source, destination=destination, box=count, held=count, want=count)
