"""What an optimizer is to those who call it, and what it is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from remesh.parallel.optim.slots import SlotSpec
from remesh.parallel.pages.large_pages import untouched
from remesh.parallel.pages.state_room import StateRoom

_UNTOUCHED_BYTES = 2**20  # from which on memory is the kernel's own zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterShard:
    """What a rank owns of one bucket: master weights and slots by name, flat, all of one size.

    The first `num_decayed` elements get weight decay.
    """

    values: Tensor
    slots: Mapping[str, Tensor]
    num_decayed: int

    @staticmethod
    def zeros(
        size: int,
        num_decayed: int,
        slots: Sequence[SlotSpec],
        dtype: torch.dtype,
        memory: "StateMemory",
    ) -> "MasterShard":
        return MasterShard(
            values=memory.zeros(size, dtype),
            slots={
                slot.name: memory.zeros(size, getattr(torch, slot.dtype) if slot.dtype else dtype)
                for slot in slots
            },
            num_decayed=num_decayed,
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that it is made of."""
        return (self.values, *self.slots.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMemory:
    """Where the memory of a state comes from: out of a room that is laid out already, if there is
    one, else from the system.
    """

    device: torch.device
    room: StateRoom | None = None

    def zeros(self, size: int, dtype: torch.dtype) -> Tensor:
        """On the CPU without a write: a page is made when somebody fills it, which several threads
        do at once where a state is read.
        """
        num_bytes = size * dtype.itemsize
        if self.device.type != "cpu" or num_bytes < _UNTOUCHED_BYTES:
            return torch.zeros(size, dtype=dtype, device=self.device)
        taken = self.room.take(num_bytes) if self.room else None
        return torch.frombuffer(taken or untouched(num_bytes), dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of one update: what the gradients are multiplied by, and how fast weights follow."""

    lr: float
    factor: float = 1.0


class Optimizer(Protocol):
    """A value: what it remembers lies in the slots, but for the number of updates."""

    @property
    def slots(self) -> tuple[SlotSpec, ...]: ...

    def update(
        self, shards: Sequence[MasterShard], gradients: Sequence[Tensor], count: int, rates: Rates
    ) -> None:
        """The `count`-th update, in place, counted from 1.

        The gradients are of the shards' sizes, and are used up. Elements may lie in any shard on
        any rank: an update has the same bits wherever a buffer is cut.
        """
        ...
