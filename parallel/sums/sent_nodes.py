"""Nodes that are sent: each rank gets its piece of all, adds it up, and sends that round."""

from collections.abc import Sequence

from torch import Tensor

from remesh.parallel.groups.collectives import start_all_gather, start_all_reduce_, start_all_to_all
from remesh.parallel.groups.group import PendingOperation
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.sums.additions import add_up
from remesh.parallel.sums.lane import Lane


class SentNodes:
    """Each rank is sent its piece of every node. Two ranks with a node each just add them."""

    def __init__(self, lane: Lane, nodes: Sequence[Sequence[range]]) -> None:
        self._lane = lane
        self._counts = [len(of_rank) for of_rank in nodes]
        self._nodes = [(member, span) for member, spans in enumerate(nodes) for span in spans]
        self._own: Sequence[Tensor] = ()
        self._home: Tensor | None = None
        self._received: Tensor | None = None
        self._packed: Tensor | None = None
        self._operation = PendingOperation()

    def offer(self, nodes: Sequence[Tensor], home: Tensor) -> bool:
        """Always True."""
        self._own, self._home = nodes, home
        return True

    def start(self) -> None:
        """Raises: Cancelled, GroupError."""
        data, pieces, nodes = self._lane.sharing.data, self._lane.pieces, self._own
        if data.size == 1:
            return
        if pieces.num_shards == 1 and self._counts == [1, 1]:
            self._operation = start_all_reduce_(data, nodes[0])
            return
        self._received = self._lane.take(sum(self._counts) * pieces.piece_size)
        self._operation = start_all_to_all(
            data,
            self._received,
            self._pack(nodes),
            [count * pieces.piece_size for count in self._counts],
            [len(nodes) * pieces.piece_size] * data.size,
        )

    def advance(self) -> None:
        """Finishes the exchange, adds up the own piece, and starts to gather the shard."""
        self._operation.wait()
        if self._received is None:
            return
        rows = list(self._received.view(-1, self._lane.pieces.piece_size))
        piece = add_up(self._lane.dealing, self._nodes, rows, Tensor.add_)
        assert self._home is not None
        shard = self._home[: piece.numel() * self._lane.sharing.replica.size]
        self._operation = start_all_gather(self._lane.sharing.replica, shard, piece)
        for buffer in (self._received, self._packed):  # the own piece lies in the shard by now
            if buffer is not None:
                self._lane.workspace.give(buffer)
        self._received = self._packed = None

    def total(self) -> Tensor:
        self._operation.wait()
        assert self._home is not None
        return self._home[: self._lane.pieces.shard_size]

    def clear(self) -> None:
        self._own, self._home = (), None

    def _pack(self, nodes: Sequence[Tensor]) -> Tensor:
        """Pieces of all nodes by destination; a single node may lie so already."""
        pieces = self._lane.pieces
        if len(nodes) == 1 and pieces.in_order:
            return nodes[0]
        self._packed = self._lane.take(len(nodes) * pieces.num_pieces * pieces.piece_size)
        rows = self._packed.view(pieces.num_pieces, len(nodes), pieces.piece_size)
        for number, gradient in enumerate(nodes):
            copy_by_destination(rows[:, number], gradient, pieces)
        return self._packed


def copy_by_destination(rows: Tensor, gradient: Tensor, pieces: Pieces) -> None:
    """Copies the pieces of `gradient` into rows, one for each position on dp."""
    if pieces.in_order:
        rows.copy_(gradient.view(rows.shape))
        return
    for position, row in enumerate(rows):
        piece = pieces.piece(position)
        row[: len(piece)] = gradient[piece.start : piece.stop]
        row[len(piece) :] = 0
