"""How the gradients of one bucket become one sum: who adds, in which order, and who owns the sum.

Each bucket has a lane of its own. Those of dense parameters are added up over all ranks with the
same share of the model, leaf by leaf; those of experts over fewer ranks, by runs of leaves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from remesh.parallel.groups.group import Group
from remesh.parallel.plan.dealing import Dealing
from remesh.parallel.plan.pieces import Pieces
from remesh.parallel.sums.meeting import SumMeeting
from remesh.parallel.sums.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """`data` are the ranks whose gradients add up, cut into runs that hold one copy of the sum.

    The ranks of `shard` hold one copy together, those of `replica` the same part of it.
    """

    data: Group
    shard: Group
    replica: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """`pieces` say which rank of `sharing` adds up and owns what, `dealing` who has which leaf.

    Where there is a `meeting`, its ranks read each other's memory.
    """

    pieces: Pieces
    sharing: Sharing
    dealing: Dealing
    workspace: Workspace
    dtype: torch.dtype
    meeting: SumMeeting | None = None

    def take(self, size: int) -> Tensor:
        """A buffer with anything in it."""
        return self.workspace.take(size, self.dtype)

    def take_blank(self) -> Tensor:
        """For the gradient of a leaf, with room for padding at the end, and with anything in it."""
        return self.take(self.pieces.padded_size)

    def take_zeros(self) -> Tensor:
        """The same with zeros in it."""
        return self.workspace.take_zeros(self.pieces.padded_size, self.dtype)

    @property
    def last_leaf(self) -> int | None:
        """Of those that this rank computes, None of none."""
        portion = self.dealing.portions[self.sharing.data.rank]
        return portion[-1] if portion else None
