"""Which bytes go from whom to whom when state changes its layout: interval arithmetic, no tensors.

What is held is asked for by the name of the tensor, never walked through: a rank of 16,384 wants a
few names, and each is held by the ranks of one pipeline stage. Whoever knows the layouts can hand
in a mapping that works out a name when it is asked for; `by_name` makes one of plain lists. Equal
fragments of several replicas are one `Held` with several holders, so that replicas cost nothing.

A plan for one destination does not depend on other destinations, so that each may make its own;
equally good sources are taken in an order that is different for each destination, which spreads
the load over them without a word between the planners.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from remesh.parallel.state.box_index import BoxIndex
from remesh.parallel.state.fragments import Fragment, Numbers

# A rank of the mesh, or the name of anything else that holds bytes: a file, a slot of a vault.
Holder = int | str
Distance = Callable[[Holder, int], int]


class ReshardError(ValueError):
    """State that cannot be put together from what is held. The message names tensor and box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFragment:
    """A fragment and all who hold it, bit for bit alike."""

    fragment: Fragment
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The bytes of `box`, of the source's fragment `held`, into the destination's `want`."""

    source: Holder
    destination: int
    box: Fragment
    held: Fragment
    want: Fragment

    @property
    def is_local(self) -> bool:
        return self.source == self.destination

    @property
    def read(self) -> tuple[slice, ...]:
        """Where the box stands in the array of the source's fragment."""
        return self.held.slices(self.box)

    @property
    def write(self) -> tuple[slice, ...]:
        """Where it goes in the array of the wanted fragment."""
        return self.want.slices(self.box)


def ranks_first(source: Holder, _destination: int) -> int:
    return 0 if isinstance(source, int) else 1


def by_name(holdings: Mapping[Holder, Iterable[Fragment]]) -> dict[str, list[HeldFragment]]:
    """What each source holds, turned into who holds each fragment, by the tensor's name."""
    holders: dict[Fragment, list[Holder]] = defaultdict(list)
    for source, fragments in holdings.items():
        for fragment in fragments:
            holders[fragment].append(source)
    have: dict[str, list[HeldFragment]] = defaultdict(list)
    for fragment, sources in holders.items():
        have[fragment.name].append(HeldFragment(fragment=fragment, holders=tuple(sources)))
    return dict(have)


def reshard(
    have: Mapping[str, Sequence[HeldFragment]],
    want: Iterable[Fragment],
    destination: int,
    distance: Distance = ranks_first,
) -> list[Move]:
    """The moves that give `destination` each byte that it wants exactly once.

    Of those who hold the same bytes it is the destination itself, else the nearest by `distance`
    (ranks before all else, if there is none), else the one with the fewest bytes to send so far.

    Cost: 10 to 20 us a move; of `have` only the names that are wanted are read.
    Raises: ReshardError if a byte is held by nobody, or in another shape or dtype.
    """
    return _Planner(have, distance).plan(destination, want)


class _Planner:
    def __init__(self, have: Mapping[str, Sequence[HeldFragment]], distance: Distance) -> None:
        self._have = have
        self._distance = distance
        self._indexes: dict[tuple[str, Numbers, str], tuple[Sequence[HeldFragment], BoxIndex]] = {}
        self._loads_bytes: dict[Holder, int] = defaultdict(int)
        self._near: dict[tuple[Holder, ...], tuple[tuple[Holder, ...], int]] = {}

    def plan(self, destination: int, want: Iterable[Fragment]) -> list[Move]:
        return [move for box in want for move in self._moves(box, destination)]

    def _moves(self, want: Fragment, destination: int) -> Iterator[Move]:
        rest = [want] if want.num_elements else []
        for held, common, nearest in self._candidates(want, destination):
            boxes, rest = taken(rest, common)
            for box in boxes:
                source = self._pick(nearest, destination, box.num_bytes)
                yield Move(
                    source=source, destination=destination, box=box, held=held.fragment, want=want
                )
            if not rest:
                break
        if rest:
            raise ReshardError(
                f"nobody holds {rest[0]} of shape {want.global_shape}, which rank {destination} "
                "needs; add a source that does, or go back to a step that is held completely"
            )

    def _candidates(
        self, want: Fragment, destination: int
    ) -> list[tuple[HeldFragment, Fragment, tuple[Holder, ...]]]:
        """Who holds something of `want`, what that is, and the nearest holders; nearest first."""
        helds, index = self._indexed(want)
        found = [
            (helds[number], common, *self._nearest(helds[number].holders, destination))
            for number, common in index.meeting(want)
        ]
        # Stable: what is equally near stays in the order of the offsets.
        found.sort(key=lambda candidate: candidate[3])
        return [candidate[:3] for candidate in found]

    def _indexed(self, want: Fragment) -> tuple[Sequence[HeldFragment], BoxIndex]:
        kind = (want.name, want.global_shape, want.dtype)
        if kind not in self._indexes:
            helds = [held for held in self._have.get(want.name, ()) if held.holders]
            for held in helds:
                _check_alike(held, want)
            self._indexes[kind] = helds, BoxIndex([held.fragment for held in helds])
        return self._indexes[kind]

    def _nearest(
        self, holders: tuple[Holder, ...], destination: int
    ) -> tuple[tuple[Holder, ...], int]:
        """Those of the holders that are nearest, and how near: -1 for the destination itself."""
        if holders not in self._near:
            distances = [self._distance(holder, destination) for holder in holders]
            least = min(distances)
            near = (h for h, distance in zip(holders, distances, strict=True) if distance == least)
            is_there = destination in holders
            self._near[holders] = ((destination,), -1) if is_there else (tuple(near), least)
        return self._near[holders]

    def _pick(self, sources: tuple[Holder, ...], destination: int, num_bytes: int) -> Holder:
        if sources == (destination,):
            return destination
        # Knuth's multiplicative hash: neighbours in a mesh, often 8 apart, begin anywhere.
        first = (destination * 2654435761 >> 16) % len(sources)
        in_turn = sources[first:] + sources[:first]
        source = min(in_turn, key=self._loads_bytes.__getitem__)
        self._loads_bytes[source] += num_bytes
        return source


def _check_alike(held: HeldFragment, want: Fragment) -> None:
    has = (held.fragment.global_shape, held.fragment.dtype)
    needs = (want.global_shape, want.dtype)
    if has != needs:
        raise ReshardError(
            f"{held.holders[0]} holds {held.fragment} of a tensor of {has[0]} {has[1]}, but "
            f"{needs[0]} {needs[1]} is wanted; bytes are moved as they are, never converted"
        )


def taken(rest: list[Fragment], piece: Fragment) -> tuple[list[Fragment], list[Fragment]]:
    """What `piece` gives of the boxes that are left, and what is left then."""
    taken: list[Fragment] = []
    left: list[Fragment] = []
    for box in rest:
        common = box.meet(piece)
        if common:
            taken.append(common)
            left += _around(box, common)
        else:
            left.append(box)
    if sum(box.num_elements for box in taken) == piece.num_elements:
        return [piece], left
    return taken, left


def _around(box: Fragment, hole: Fragment) -> Iterator[Fragment]:
    """The box without the hole in it, as at most two boxes a dimension."""
    offsets, sizes = box.offsets, box.sizes
    for dim, (start, size) in enumerate(zip(hole.offsets, hole.sizes, strict=True)):
        end, box_end = start + size, offsets[dim] + sizes[dim]
        for first, length in ((offsets[dim], start - offsets[dim]), (end, box_end - end)):
            if length:
                yield box.part(
                    (*offsets[:dim], first, *offsets[dim + 1 :]),
                    (*sizes[:dim], length, *sizes[dim + 1 :]),
                )
        offsets = (*offsets[:dim], start, *offsets[dim + 1 :])
        sizes = (*sizes[:dim], size, *sizes[dim + 1 :])
