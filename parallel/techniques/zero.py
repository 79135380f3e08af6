"""Working weights: what the model computes with, derived from the master weights of all shards.

Up to ZeRO 2 a rank holds all of them and fetches them once a step; at ZeRO 3 it holds a bucket from
just before a block needs it to just after. Buckets that are never there at the same time take turns
in one piece of memory. What backward has saved are views of it, and by the time it is read the same
values are there again; nothing else has to be known about autograd. Where one rank owns a whole
bucket in the type that it computes in, master and working weights are the same memory.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from remesh.parallel.groups.collectives import start_all_gather
from remesh.parallel.groups.group import Group, PendingOperation
from remesh.parallel.plan.buckets import Visit


class WorkingWeights:
    """The working weights of one bucket. `full` is flat; it holds values while `ready`."""

    def __init__(self, master: Tensor, full: Tensor, group: Group) -> None:
        self.full = full
        self._master = master
        self._group = group
        self._operation: PendingOperation | None = None
        self.expire()

    def start(self) -> None:
        """Begins to fetch the values, if they are not there. Raises: Cancelled, GroupError."""
        if not self.ready and self._operation is None:
            own = self.full.view(self._group.size, -1)[self._group.rank]
            own.copy_(self._master[: len(own)])
            self._operation = start_all_gather(self._group, self.full, own)

    def fetch(self) -> None:
        """Returns when the values are there. Raises: Cancelled, GroupError."""
        self.start()
        if self._operation is not None:
            self._operation.wait()
            self._operation = None
        self.ready = True

    def expire(self) -> None:
        """What is there is no longer what the master weights say, or leaves room for others."""
        assert self._operation is None
        self.ready = self.full is self._master


def place_weights(
    masters: Sequence[Tensor],
    groups: Sequence[Group],
    dtype: torch.dtype,
    turns: Sequence[int] | None,
) -> tuple[WorkingWeights, ...]:
    """Working weights of buckets with these master shards, each of a group that has all of it.
    `turns` numbers the memory that each bucket shares with others; without it each has its own.
    """
    sizes = [m.numel() * group.size for m, group in zip(masters, groups, strict=True)]
    rooms: dict[int, int] = {}
    owners: list[int | None] = list(turns or range(len(masters)))
    for number, (master, group) in enumerate(zip(masters, groups, strict=True)):
        owner = owners[number]
        if owner is None or (group.size == 1 and master.dtype == dtype):
            owners[number] = None  # master and working weights are the same memory
        else:
            rooms[owner] = max(rooms.get(owner, 0), sizes[number])
    device = masters[0].device
    memory = {owner: torch.empty(n, dtype=dtype, device=device) for owner, n in rooms.items()}
    return tuple(
        WorkingWeights(master, master if owner is None else memory[owner][:size], group)
        for master, owner, size, group in zip(masters, owners, sizes, groups, strict=True)
    )


def room_bytes(weights: Sequence[WorkingWeights], masters: Sequence[Tensor]) -> int:
    """Memory that the working weights take besides the master weights."""
    own = {master.untyped_storage().data_ptr() for master in masters}
    rooms = {w.full.untyped_storage().data_ptr(): w.full.untyped_storage() for w in weights}
    return sum(room.nbytes() for pointer, room in rooms.items() if pointer not in own)


class Gathering:
    """Fetches, prefetches and frees the buckets of a rank's schedule, phase by phase.

    `visits` are those of a whole step, and the next one begins anew. With `frees` False a bucket
    that was fetched stays until its master weights change. No phase begins once the generation of
    `world` is over: ranks that compute on hold up those that wait for them to park.
    """

    def __init__(
        self,
        weights: tuple[WorkingWeights, ...],
        visits: tuple[Visit, ...],
        world: Group,
        *,
        frees: bool,
    ) -> None:
        self._weights = weights
        self._visits = visits
        self._world = world
        self._frees = frees
        self._phase = 0

    def enter(self) -> None:
        """Raises: Cancelled, GroupError."""
        self._world.check()
        visit = self._visits[self._phase]
        for bucket in visit.needs:
            self._weights[bucket].fetch()
        for bucket in visit.prefetches:
            self._weights[bucket].start()

    def leave(self) -> None:
        if self._frees:
            for bucket in self._visits[self._phase].releases:
                self._weights[bucket].expire()
        self._phase = (self._phase + 1) % len(self._visits)
