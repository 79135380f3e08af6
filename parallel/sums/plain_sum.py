"""The gradient of a global batch by the backend's own collectives: other bits at every dp, faster.

What `elastic.same_bits = false` asks for. A rank adds all its leaves in one buffer, and one
reduction a bucket follows; from ZeRO 2 on, where no rank keeps a whole gradient, one for each leaf.
"""

from torch import Tensor

from remesh.parallel.groups.collectives import start_all_reduce_, start_reduce_scatter
from remesh.parallel.groups.group import PendingOperation
from remesh.parallel.sums.lane import Lane


class PlainSum:
    """Sums of one bucket, reduced once, in place. Used as TreeSum is."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._sum: Tensor | None = None
        self._shard: Tensor | None = None
        self._operation = PendingOperation()

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
        return self._lane.dealing.leaf(leaf) == self._lane.last_leaf

    def start(self) -> None:
        if self._lane.pieces.num_shards == 1:
            self._operation = start_all_reduce_(self._lane.sharing.data, self.take())
        else:
            shards = self.take()[: self._lane.pieces.num_shards * self._lane.pieces.shard_size]
            self._shard = shards.view(self._lane.pieces.num_shards, -1)[
                self._lane.sharing.shard.rank
            ]
            self._operation = start_reduce_scatter(self._lane.sharing.shard, self._shard, shards)

    def advance(self) -> None:
        self._operation.wait()
        if self._shard is not None:
            self._operation = start_all_reduce_(self._lane.sharing.replica, self._shard)

    def total(self) -> Tensor:
        self._operation.wait()
        return self.take()[: self._lane.pieces.size] if self._shard is None else self._shard

    def clear(self) -> None:
        if self._sum is not None:
            self._lane.workspace.give(self._sum)
        self._sum = self._shard = None


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
