"""How nodes of all ranks meet: what a rank has added up by itself becomes the shard that it owns.

By messages (sent_nodes.py); where ranks can read each other's memory, by that (read_nodes.py).
Either way each rank adds up one piece of all nodes (pieces.py), and pieces are gathered to shards.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from remesh.parallel.sums.lane import Lane
from remesh.parallel.sums.read_nodes import ReadNodes
from remesh.parallel.sums.sent_nodes import SentNodes


class NodeExchange(Protocol):
    """One exchange of the nodes of a step. All ranks `offer` theirs, then own shards of a `total`.

    Where `offer` says that there is something to begin with beside backward, they call `start` and
    then `advance` in one order. `home` is a buffer of this rank's: that of its first node, or a
    blank one where it has none. It and the nodes may be written to again after a vote of all ranks.
    """

    def offer(self, nodes: Sequence[Tensor], home: Tensor) -> bool: ...

    def start(self) -> None: ...

    def advance(self) -> None: ...

    def total(self) -> Tensor:
        """The own shard of the sum, valid until `clear`."""
        ...

    def clear(self) -> None: ...


def exchange_of(lane: Lane, nodes: Sequence[Sequence[range]]) -> NodeExchange:
    """For nodes of all ranks, each a span of leaves."""
    if lane.meeting is None:
        return SentNodes(lane, nodes)
    return ReadNodes(lane, nodes, lane.meeting)
