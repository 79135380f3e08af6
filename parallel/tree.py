"""The gradient of a global batch, added up in an order that does not depend on who adds it.

leaves.py says which additions; here they are done on flat buffers. A rank keeps log2(leaves) + 1
of them alive while it computes. Then all ranks exchange: each gets its shard of every rank's nodes,
adds them in the tree's order, and the sums are gathered. Where two ranks hold one node each, a
plain all_reduce does the same addition, since a + b = b + a.
"""

import torch
from torch import Tensor

from remesh.parallel.collectives import all_gather, all_reduce_, all_to_all
from remesh.parallel.group import Group
from remesh.parallel.leaves import aligned_nodes, deal, push
from remesh.parallel.optim.flat import CHUNK

Node = tuple[range, Tensor]


class GradientTree:
    """Flat fp32 leaf gradients of `size` elements, a multiple of 64, on their way to one sum."""

    def __init__(self, num_leaves: int, size: int) -> None:
        self.num_leaves = num_leaves
        self.size = size
        self._nodes: list[Node] = []
        self._spare: list[Tensor] = []
        self._workspace: dict[str, Tensor] = {}

    def clear(self) -> None:
        """Forgets the leaves of the last step."""
        self._spare += [buffer for _, buffer in self._nodes]
        self._nodes.clear()

    def abandon(self) -> None:
        """Gives up all memory: an operation that was left behind may still write to it."""
        self._nodes.clear()
        self._spare.clear()
        self._workspace.clear()

    def take(self) -> Tensor:
        """A buffer of zeros for the next leaf."""
        return self._spare.pop().zero_() if self._spare else torch.zeros(self.size)

    def add(self, leaf: int, gradient: Tensor) -> None:
        """Takes a buffer back with the gradient of `leaf` in it. Leaves come in order."""
        push(self._nodes, (range(leaf, leaf + 1), gradient), self._joined, self.num_leaves)

    def reduce(self, group: Group) -> Tensor:
        """The sum over all leaves of all ranks, on each rank. Valid until the next `clear`.

        Every rank must have added the leaves that `deal` gives it.
        Cost: at n ranks with k nodes each, 4 * size * (k + 1) * (n - 1) / n bytes sent a rank.
        Raises: Cancelled, GroupError.
        """
        spans = [aligned_nodes(span, self.num_leaves) for span in deal(self.num_leaves, group.size)]
        assert tuple(span for span, _ in self._nodes) == spans[group.rank]
        if group.size == 1:
            return self._nodes[0][1]
        if [len(nodes) for nodes in spans] == [1, 1]:
            all_reduce_(group, self._nodes[0][1])
            return self._nodes[0][1]
        return self._reduce_shards(group, spans)

    def _reduce_shards(self, group: Group, spans: list[tuple[range, ...]]) -> Tensor:
        shard_size = -(-self.size // (CHUNK * group.size)) * CHUNK
        received = self._exchange(group, [len(nodes) for nodes in spans], shard_size)
        stack: list[Node] = []
        for span, shard in zip(sum(spans, ()), received, strict=True):
            push(stack, (span, shard), Tensor.add_, self.num_leaves)
        [(_, own_shard)] = stack
        gathered = self._buffer("gathered", group.size * shard_size)
        all_gather(group, gathered, own_shard)
        return gathered[: self.size]

    def _exchange(self, group: Group, num_nodes: list[int], shard_size: int) -> Tensor:
        """The own shard of every node of all ranks, one row a node, from left to right."""
        own_nodes = len(self._nodes)
        packed = self._buffer("packed", group.size * own_nodes * shard_size)
        rows = packed.view(group.size, own_nodes, shard_size)
        for number, (_, gradient) in enumerate(self._nodes):
            _cut_into(rows[:, number], gradient)
        received = self._buffer("received", sum(num_nodes) * shard_size)
        all_to_all(
            group,
            received,
            packed,
            [count * shard_size for count in num_nodes],
            [own_nodes * shard_size] * group.size,
        )
        return received.view(-1, shard_size)

    def _joined(self, left: Tensor, right: Tensor) -> Tensor:
        left.add_(right)
        self._spare.append(right)
        return left

    def _buffer(self, name: str, size: int) -> Tensor:
        """Room that is kept from step to step: fresh pages cost as much as the copy."""
        if name not in self._workspace or self._workspace[name].numel() < size:
            self._workspace[name] = torch.zeros(size)
        return self._workspace[name][:size]


def _cut_into(rows: Tensor, flat: Tensor) -> None:
    """Copies `flat` into the rows, one after the other; what is left of them stays as it is."""
    length = rows.shape[1]
    whole, rest = divmod(flat.numel(), length)
    rows[:whole].copy_(flat[: whole * length].view(whole, length))
    if rest:
        rows[whole, :rest].copy_(flat[whole * length :])
