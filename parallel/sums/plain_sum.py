"""The gradient of a global batch by the backend's own collectives: other bits at every dp, faster.

What `elastic.same_bits = false` asks for. A rank adds all its leaves in one buffer, and one
reduction a bucket follows; from ZeRO 2 on, where no rank keeps a whole gradient, one for each leaf.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from remesh.parallel.groups.collectives import start_all_reduce_, start_reduce_scatter
from remesh.parallel.groups.group import PendingOperation
from remesh.parallel.plan.dealing import Dealing
from remesh.parallel.plan.leaves import LeafTree
from remesh.parallel.sums.lane import Lane
from remesh.parallel.sums.meeting import SumMeeting
from remesh.parallel.sums.read_nodes import ReadNodes


class PlainSum:
    """Sums of one bucket, reduced once, in place. Used as TreeSum is."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._sum: Tensor | None = None
        self._exchange = _Reduced(lane) if lane.meeting is None else _read(lane, lane.meeting)

    def take(self) -> Tensor:
        """The sum of all leaves before, to add to."""
        if self._sum is None:
            self._sum = self._lane.take_zeros()
        return self._sum

    def take_blank(self) -> Tensor | None:
        """For the first leaf; the others are added to it."""
        if self._sum is not None:
            return None
        self._sum = self._lane.take_blank()
        return self._sum

    def add(self, leaf: int | None, gradient: Tensor | None) -> bool:
        del gradient
        if self._lane.dealing.leaf(leaf) != self._lane.last_leaf:
            return False
        return self._exchange.offer([self.take()], self.take())

    def start(self) -> None:
        self._exchange.start()

    def advance(self) -> None:
        self._exchange.advance()

    def total(self) -> Tensor:
        return self._exchange.total()

    def clear(self) -> None:
        self._exchange.clear()
        if self._sum is not None:
            self._lane.workspace.give(self._sum)
        self._sum = None


class _Reduced:
    """One reduction, by what the backend has: an exchange of one node of each rank."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._own: Tensor | None = None
        self._shard: Tensor | None = None
        self._operation = PendingOperation()

    def offer(self, nodes: Sequence[Tensor], home: Tensor) -> bool:
        del nodes
        self._own = home
        return True

    def start(self) -> None:
        own, pieces, sharing = self._own, self._lane.pieces, self._lane.sharing
        assert own is not None
        if pieces.num_shards == 1:
            self._operation = start_all_reduce_(sharing.data, own)
        else:
            shards = own[: pieces.num_shards * pieces.shard_size]
            self._shard = shards.view(pieces.num_shards, -1)[sharing.shard.rank]
            self._operation = start_reduce_scatter(sharing.shard, self._shard, shards)

    def advance(self) -> None:
        self._operation.wait()
        if self._shard is not None:
            self._operation = start_all_reduce_(self._lane.sharing.replica, self._shard)

    def total(self) -> Tensor:
        self._operation.wait()
        assert self._own is not None
        return self._own[: self._lane.pieces.size] if self._shard is None else self._shard

    def clear(self) -> None:
        self._own = self._shard = None


def _read(lane: Lane, meeting: SumMeeting) -> ReadNodes:
    """Where ranks read each other's memory: each one's sum is a node of a tree."""
    size = lane.sharing.data.size
    ranks = tuple(range(rank, rank + 1) for rank in range(size))
    dealing = Dealing(tree=LeafTree(num_leaves=size), portions=ranks)
    return ReadNodes(replace(lane, dealing=dealing), [[rank] for rank in ranks], meeting)


class StreamedPlainSum:
    """Sums of one bucket, reduced leaf by leaf. Used as StreamedTreeSum is."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._sent: Tensor | None = None
        self._received: Tensor | None = None
        self._sum: Tensor | None = None
        self._operation = PendingOperation()

    def take(self) -> Tensor:
        return self._lane.take_zeros()

    def take_blank(self) -> Tensor:
        return self._lane.take_blank()

    def add(self, leaf: int | None, gradient: Tensor | None) -> bool:
        del leaf
        self._sent = self.take() if gradient is None else gradient
        return True

    def start(self) -> None:
        assert self._sent is not None
        self._received = self._lane.take(self._lane.pieces.shard_size)
        shards = self._sent[: self._lane.pieces.num_shards * self._lane.pieces.shard_size]
        self._operation = start_reduce_scatter(self._lane.sharing.shard, self._received, shards)

    def advance(self) -> None:
        self._operation.wait()
        assert self._sent is not None
        assert self._received is not None
        self._lane.workspace.give(self._sent)
        if self._sum is None:
            self._sum = self._received
        else:
            self._lane.workspace.give(self._received)
            self._sum.add_(self._received)
        self._sent = self._received = None

    def total(self) -> Tensor:
        assert self._sum is not None
        start_all_reduce_(self._lane.sharing.replica, self._sum).wait()
        return self._sum

    def clear(self) -> None:
        if self._sum is not None:
            self._lane.workspace.give(self._sum)
        self._sum = None
