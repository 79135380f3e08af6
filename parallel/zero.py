"""Working weights: what the model computes with, derived from the master weights of all shards.

Up to ZeRO 2 a rank holds all of them and fetches them once a step; at ZeRO 3 it holds a bucket from
just before a block needs it to just after. A bucket's storage is emptied and filled again in place,
because what backward has saved are views of it; nothing else would have to be known about autograd.
Where one rank owns a whole bucket in the type that it computes in, master and working weights are
the same memory.
"""

import torch
from torch import Tensor

from remesh.parallel.buckets import Visit
from remesh.parallel.collectives import start_all_gather
from remesh.parallel.group import Group, Operation


class WorkingWeights:
    """The working weights of one bucket. `full` is flat; it holds values while `ready`."""

    def __init__(self, master: Tensor, size: int, group: Group, dtype: torch.dtype) -> None:
        self._master = master
        self._group = group
        self._operation = Operation()
        self._derived = group.size > 1 or master.dtype != dtype
        length = max(size, master.numel() * group.size)
        self.full = (
            torch.empty(length, dtype=dtype, device=master.device) if self._derived else master
        )
        self._bytes = self.full.untyped_storage().nbytes()
        self.ready = not self._derived
        self._pending = False

    @property
    def held_bytes(self) -> int:
        """Memory besides the master weights."""
        return self.full.untyped_storage().nbytes() if self._derived else 0

    def start(self) -> None:
        """Begins to fetch the values, if they are not there. Raises: Cancelled, GroupError."""
        if self.ready or self._pending:
            return
        self.full.untyped_storage().resize_(self._bytes)
        own = self._master.to(self.full.dtype)
        self._operation = start_all_gather(self._group, self.full, own)
        self._pending = True

    def fetch(self) -> None:
        """Returns when the values are there. Raises: Cancelled, GroupError."""
        self.start()
        self._operation.wait()
        self._pending = False
        self.ready = True

    def expire(self) -> None:
        """The master weights have changed."""
        self.ready = not self._derived

    def free(self) -> None:
        """Gives the memory back until the next fetch."""
        if self._derived:
            assert not self._pending
            self.full.untyped_storage().resize_(0)
            self.ready = False


class Gathering:
    """Fetches, prefetches and frees the buckets of a pass, phase by phase.

    `visits` are those of forward and then backward. With `frees` False a bucket that was fetched
    stays until its master weights change.
    """

    def __init__(
        self, weights: tuple[WorkingWeights, ...], visits: tuple[Visit, ...], *, frees: bool
    ) -> None:
        self._weights = weights
        self._visits = visits
        self._frees = frees

    def enter(self, phase: int) -> None:
        """Raises: Cancelled, GroupError."""
        visit = self._visits[phase]
        for bucket in visit.needs:
            self._weights[bucket].fetch()
        for bucket in visit.prefetches:
            self._weights[bucket].start()

    def leave(self, phase: int) -> None:
        if self._frees:
            for bucket in self._visits[phase].releases:
                self._weights[bucket].free()
