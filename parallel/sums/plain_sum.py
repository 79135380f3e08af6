"""The gradient of a global batch by the backend's own collectives: other bits at every dp, faster.

What `elastic.same_bits = false` asks for. A rank adds all its leaves in one buffer, and one
reduction a bucket follows; from ZeRO 2 on, where no rank keeps a whole gradient, one for each leaf.
"""

import torch
from torch import Tensor

from remesh.parallel.groups.collectives import start_all_reduce_, start_reduce_scatter
from remesh.parallel.groups.group import PendingOperation
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.plan.leaves import deal
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.sums.workspace import Workspace


class PlainSum:
    """Sums of one bucket, reduced once, in place. Used as TreeSum is."""

    def __init__(
        self, pieces: Pieces, num_leaves: int, mesh: Mesh, workspace: Workspace, dtype: torch.dtype
    ) -> None:
        span = deal(num_leaves, mesh.data.size)[mesh.data.rank]
        self._pieces = pieces
        self._mesh = mesh
        self._workspace = workspace
        self._dtype = dtype
        self._last_leaf = span.stop - 1 if span else None
        self._sum: Tensor | None = None
        self._shard: Tensor | None = None
        self._operation = PendingOperation()

    def take(self) -> Tensor:
        """The sum of all leaves before, to add to."""
        if self._sum is None:
            self._sum = self._workspace.take_zeros(self._pieces.padded_size, self._dtype)
        return self._sum

    def add(self, leaf: int | None, gradient: Tensor | None) -> bool:
        del gradient
        if leaf != self._last_leaf:
            return False
        if self._pieces.num_shards == 1:
            self._operation = start_all_reduce_(self._mesh.data, self.take())
        else:
            shards = self.take()[: self._pieces.num_shards * self._pieces.shard_size]
            self._shard = shards.view(self._pieces.num_shards, -1)[self._mesh.shard.rank]
            self._operation = start_reduce_scatter(self._mesh.shard, self._shard, shards)
        return True

    def advance(self) -> None:
        self._operation.wait()
        if self._shard is not None:
            self._operation = start_all_reduce_(self._mesh.replica, self._shard)

    def total(self) -> Tensor:
        self._operation.wait()
        return self.take()[: self._pieces.size] if self._shard is None else self._shard

    def clear(self) -> None:
        if self._sum is not None:
            self._workspace.give(self._sum)
        self._sum = self._shard = None


class StreamedPlainSum:
    """Sums of one bucket, reduced leaf by leaf. Used as StreamedTreeSum is."""

    def __init__(
        self, pieces: Pieces, num_leaves: int, mesh: Mesh, workspace: Workspace, dtype: torch.dtype
    ) -> None:
        del num_leaves
        self._pieces = pieces
        self._mesh = mesh
        self._workspace = workspace
        self._dtype = dtype
        self._sent: Tensor | None = None
        self._received: Tensor | None = None
        self._sum: Tensor | None = None
        self._operation = PendingOperation()

    def take(self) -> Tensor:
        return self._workspace.take_zeros(self._pieces.padded_size, self._dtype)

    def add(self, leaf: int | None, gradient: Tensor | None) -> bool:
        del leaf
        self._sent = self.take() if gradient is None else gradient
        self._received = self._workspace.take(self._pieces.shard_size, self._dtype)
        shards = self._sent[: self._pieces.num_shards * self._pieces.shard_size]
        self._operation = start_reduce_scatter(self._mesh.shard, self._received, shards)
        return True

    def advance(self) -> None:
        self._operation.wait()
        assert self._sent is not None
        assert self._received is not None
        self._workspace.give(self._sent)
        if self._sum is None:
            self._sum = self._received
        else:
            self._workspace.give(self._received)
            self._sum.add_(self._received)
        self._sent = self._received = None

    def total(self) -> Tensor:
        assert self._sum is not None
        start_all_reduce_(self._mesh.replica, self._sum).wait()
        return self._sum

    def clear(self) -> None:
        if self._sum is not None:
            self._workspace.give(self._sum)
        self._sum = None
