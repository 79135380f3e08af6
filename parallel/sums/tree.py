"""The gradient of a global batch, added up in an order that does not depend on who adds it.

leaves.py says which additions; here they are done on the flat buffer of one bucket, cut into one
piece a replica (pieces.py). Up to ZeRO 1 a rank adds its own leaves, keeps log2(leaves) + 1 buffers
while it computes, and the ranks exchange nodes once a step. From ZeRO 2 on they exchange every
leaf, as soon as it is there, and the owner of a piece keeps log2(leaves) + 1 pieces. Both add the
same nodes in the same order.
"""

from collections.abc import Sequence

from torch import Tensor

from remesh.parallel.groups.collectives import start_all_gather, start_all_to_all
from remesh.parallel.groups.group import PendingOperation
from remesh.parallel.plan.leaves import push
from remesh.parallel.sums.additions import sum_of_parts
from remesh.parallel.sums.exchanges import exchange_of
from remesh.parallel.sums.lane import Lane
from remesh.parallel.sums.sent_nodes import copy_by_destination

TreeNode = tuple[range, Tensor]


class TreeSum:
    """Sums of one bucket; every rank adds its leaves, then all exchange nodes.

    Use: `take` and `add` for each leaf in order; `start` and `advance` after the last; `total`.
    """

    def __init__(self, lane: Lane) -> None:
        dealing = lane.dealing
        self._lane = lane
        self._tree = dealing.tree
        nodes = [self._tree.nodes(portion) for portion in dealing.portions]
        self._exchange = exchange_of(lane, nodes)
        self._nodes: list[TreeNode] = []

    def take(self) -> Tensor:
        return self._lane.take_zeros()

    def take_blank(self) -> Tensor:
        return self._lane.take_blank()

    def add(self, leaf: int | None, gradient: Tensor | None) -> bool:
        """Takes a buffer back with the gradient of `leaf`; True if the exchange can start.

        A rank without any leaf calls it once, with nothing.
        """
        own = self._lane.dealing.leaf(leaf)
        if own is not None and gradient is not None:
            node = (range(own, own + 1), gradient)
            push(self._nodes, node, self._joined, self._tree)
        if own != self._lane.last_leaf:
            return False
        nodes = [node for _, node in self._nodes]
        return self._exchange.offer(nodes, self._home())

    def start(self) -> None:
        """Raises: Cancelled, GroupError."""
        self._exchange.start()

    def advance(self) -> None:
        """Adds up the own piece of the nodes of all ranks. Raises: Cancelled, GroupError."""
        self._exchange.advance()

    def total(self) -> Tensor:
        """The own shard of the sum over all leaves of all ranks. Valid until `clear`."""
        return self._exchange.total()

    def clear(self) -> None:
        """Ends the step, after a vote of all ranks."""
        self._exchange.clear()
        for _, buffer in self._nodes:
            self._lane.workspace.give(buffer)
        self._nodes.clear()

    def _home(self) -> Tensor:
        """Where the sum comes to lie: in the first node's buffer, which has been sent by then."""
        if not self._nodes:
            self._nodes.append((range(0), self.take()))
        return self._nodes[0][1]

    def _joined(self, left: Tensor, right: Tensor) -> Tensor:
        left.add_(right)
        self._lane.workspace.give(right)
        return left


class StreamedTreeSum:
    """Sums of one bucket, exchanged leaf by leaf, for gradients that no rank keeps whole.

    In each round neighbouring ranks add neighbouring leaves: so they arrive at the owner of a piece
    in the tree's order, and siblings together. Use as TreeSum, with `start` and `advance` after
    every `add`.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._tree = lane.dealing.tree
        self._round = 0
        self._nodes = self._no_nodes()
        self._gradient: Tensor | None = None
        self._sent: list[Tensor] = []
        self._received: Tensor | None = None
        self._operation = PendingOperation()

    def take(self) -> Tensor:
        return self._lane.take_zeros()

    def take_blank(self) -> Tensor:
        return self._lane.take_blank()

    def add(self, leaf: int | None, gradient: Tensor | None) -> bool:
        """Takes a leaf to exchange, None for a round without one. Always True."""
        del leaf
        self._gradient = gradient
        return True

    def start(self) -> None:
        """Sends the pieces of the leaf to their owners."""
        gradient, self._gradient = self._gradient, None
        data, piece_size = self._lane.sharing.data, self._lane.pieces.piece_size
        leaves = self._lane.dealing.round(self._round)
        self._received = self._lane.take((len(leaves) - leaves.count(None)) * piece_size)
        self._sent = [] if gradient is None else [gradient, *self._packed(gradient)]
        sent = self._sent[-1] if self._sent else self._received[:0]
        self._operation = start_all_to_all(
            data,
            self._received,
            sent,
            [piece_size * (other is not None) for other in leaves],
            [piece_size * (gradient is not None)] * data.size,
        )

    def advance(self) -> None:
        """Takes in what has arrived in this round."""
        self._operation.wait()
        assert self._received is not None
        rows = self._received.view(-1, self._lane.pieces.piece_size)
        dealing = self._lane.dealing
        dealt = [(m, n) for m, n in enumerate(dealing.round(self._round)) if n is not None]
        for (member, leaf), row in zip(dealt, rows, strict=True):
            node = (range(leaf, leaf + 1), row)
            push(self._nodes[dealing.part(member)], node, self._joined, self._tree)
        self._nodes = [[self._kept(node) for node in nodes] for nodes in self._nodes]
        for buffer in (*self._sent, self._received):
            self._lane.workspace.give(buffer)
        self._sent, self._received = [], None
        self._round += 1

    def total(self) -> Tensor:
        piece = sum_of_parts(self._nodes, self._joined)
        replica = self._lane.sharing.replica
        if replica.size > 1:
            shard = self._lane.take(replica.size * self._lane.pieces.piece_size)
            start_all_gather(replica, shard, piece).wait()
            self._lane.workspace.give(piece)
            piece = shard
        self._nodes = [[(range(self._tree.num_leaves), piece)]]
        return piece[: self._lane.pieces.shard_size]

    def clear(self) -> None:
        for _, buffer in (node for nodes in self._nodes for node in nodes):
            self._lane.workspace.give(buffer)
        self._nodes, self._round = self._no_nodes(), 0

    def _no_nodes(self) -> list[list[TreeNode]]:
        """Of each part."""
        return [[] for _ in range(self._lane.dealing.parts)]

    def _packed(self, gradient: Tensor) -> Sequence[Tensor]:
        pieces = self._lane.pieces
        if pieces.in_order:
            return ()
        packed = self._lane.take(pieces.num_pieces * pieces.piece_size)
        copy_by_destination(packed.view(pieces.num_pieces, -1), gradient, pieces)
        return (packed,)

    def _joined(self, left: Tensor, right: Tensor) -> Tensor:
        left.add_(right)
        if not self._is_received(right):
            self._lane.workspace.give(right)
        return left

    def _kept(self, node: TreeNode) -> TreeNode:
        """The node in a buffer of its own."""
        span, row = node
        if not self._is_received(row):
            return node
        kept = self._lane.take(self._lane.pieces.piece_size)
        return span, kept.copy_(row)

    def _is_received(self, row: Tensor) -> bool:
        """Whether it lies among the rows of this round."""
        if self._received is None:
            return False
        return row.untyped_storage().data_ptr() == self._received.untyped_storage().data_ptr()
