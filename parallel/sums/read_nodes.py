"""Nodes of ranks on one host, added up where they lie, by this rank its piece of all of them."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remesh.parallel.pages.own_pages import PagePlace
from remesh.parallel.sums.additions import add_up
from remesh.parallel.sums.lane import Lane
from remesh.parallel.sums.meeting import SumMeeting

_CACHE_BYTES = 1 << 19  # what is added up at a time, so that what comes between stays near
_LEAST_RUN = 1 << 12  # elements
_PLACE = 3  # numbers that tell one


class ReadNodes:
    """An exchange for nodes in the pages of the lane's workspace: all of it is at the meeting.

    Of its home a rank overwrites its own piece, which no other rank reads of the nodes, and then
    those of its shard, whose owners have added them up by then.
    """

    def __init__(self, lane: Lane, nodes: Sequence[Sequence[range]], meeting: SumMeeting) -> None:
        self._lane = lane
        self._meeting = meeting
        self._counts = [len(spans) for spans in nodes]
        self._additions = _additions(lane, nodes)
        self._own: Sequence[Tensor] = ()
        self._home: Tensor | None = None
        self._places: list[list[PagePlace]] = []
        self.num_told = _PLACE * (1 + max(self._counts))
        self.piece_bytes = lane.pieces.piece_size * lane.dtype.itemsize
        self.nodes_bytes = self._counts[lane.sharing.data.rank] * self.piece_bytes
        meeting.join(self)

    def offer(self, nodes: Sequence[Tensor], home: Tensor) -> bool:
        """Always False: there is nothing to begin with before the meeting."""
        self._own, self._home = nodes, home
        return False

    def start(self) -> None:
        """Nothing."""

    def advance(self) -> None:
        """Nothing."""

    def total(self) -> Tensor:
        """Raises: Cancelled, GroupError."""
        self._meeting.hold()
        assert self._home is not None
        size = self._lane.pieces.shard_size
        return self._home[self._lane.sharing.shard.rank * size :][:size]

    def clear(self) -> None:
        self._meeting.clear()
        self._own, self._home, self._places = (), None, []

    def told(self) -> list[int]:
        """Where the home is, and where the nodes are."""
        assert self._home is not None
        places = [self._meeting.own.place(buffer) for buffer in (self._home, *self._own)]
        numbers = [n for place in places for n in (place.descriptor, place.key, place.offset)]
        return [*numbers, *[0] * (self.num_told - len(numbers))]

    def add_up(self, heard: Sequence[Sequence[int]]) -> None:
        """The own piece, of all nodes of all ranks, a run of it at a time."""
        self._places = [_places(numbers) for numbers in heard]
        lane = self._lane
        piece, nodes = lane.pieces.piece(lane.sharing.data.rank), self._nodes()
        assert self._home is not None
        own = self._home[piece.start : piece.stop]
        run = _CACHE_BYTES // (lane.dtype.itemsize * (1 + len(self._additions)))
        run = min(max(_LEAST_RUN, run), lane.pieces.piece_size)
        between = [lane.take(run) for _ in self._additions[1:]]
        for start in range(0, len(piece), run):
            values = [node[start : start + run] for node in nodes]
            to = own[start : start + run]
            if not self._additions:
                to.copy_(values[0])
            outs = [*(one[: len(to)] for one in between), to]
            for (left, right), out in zip(self._additions, outs, strict=False):
                torch.add(values[left], values[right], out=out)
                values[left] = out
        for buffer in between:
            lane.workspace.give(buffer)

    def gather(self) -> None:
        """The pieces of the own shard that others have added up."""
        sharing, pieces = self._lane.sharing, self._lane.pieces
        assert self._home is not None
        for replica in range(sharing.replica.size):
            if replica != sharing.replica.rank:
                member = replica * pieces.num_shards + sharing.shard.rank
                piece, place = pieces.piece(member), self._places[member][0]
                self._home[piece.start : piece.stop] = self._view(member, place, piece)

    def _nodes(self) -> list[Tensor]:
        """The own piece of each node of all ranks."""
        data = self._lane.sharing.data
        piece, found = self._lane.pieces.piece(data.rank), []
        for member, count in enumerate(self._counts):
            if member == data.rank:
                found += [node[piece.start : piece.stop] for node in self._own]
                continue
            places = self._places[member][1 : 1 + count]
            found += [self._view(member, place, piece) for place in places]
        return found

    def _view(self, member: int, place: PagePlace, span: range) -> Tensor:
        dtype = self._lane.dtype
        if not span:
            return torch.empty(0, dtype=dtype)
        first = replace(place, offset=place.offset + span.start * dtype.itemsize)
        return self._meeting.shared.view(member, first, len(span), dtype)


def _additions(lane: Lane, nodes: Sequence[Sequence[range]]) -> list[tuple[int, int]]:
    """Of nodes by their numbers; the sum of two takes the number of the left one."""
    additions: list[tuple[int, int]] = []

    def note(left: int, right: int) -> int:
        additions.append((left, right))
        return left

    flat = [(member, span) for member, spans in enumerate(nodes) for span in spans]
    add_up(lane.dealing, flat, range(len(flat)), note)
    return additions


def _places(numbers: Sequence[int]) -> list[PagePlace]:
    triples = (numbers[at : at + _PLACE] for at in range(0, len(numbers), _PLACE))
    return [PagePlace(descriptor=triple[0], key=triple[1], offset=triple[2]) for triple in triples]
