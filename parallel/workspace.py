"""Memory for what lives shorter than a step, used again: fresh pages cost as much as a copy."""

from collections import defaultdict

import torch
from torch import Tensor


class Workspace:
    """Flat buffers by size and type. What is taken is given back, or lost with `abandon`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spare: dict[tuple[int, torch.dtype], list[Tensor]] = defaultdict(list)

    def take(self, size: int, dtype: torch.dtype) -> Tensor:
        """A buffer with anything in it."""
        spare = self._spare[size, dtype]
        return spare.pop() if spare else torch.empty(size, dtype=dtype, device=self.device)

    def take_zeros(self, size: int, dtype: torch.dtype) -> Tensor:
        spare = self._spare[size, dtype]
        if spare:
            return spare.pop().zero_()
        return torch.zeros(size, dtype=dtype, device=self.device)

    def give(self, buffer: Tensor) -> None:
        self._spare[buffer.numel(), buffer.dtype].append(buffer)

    def abandon(self) -> None:
        """Gives up all memory: an operation that was left behind may still write to it."""
        self._spare.clear()

    @property
    def spare_bytes(self) -> int:
        return sum(buffer.nbytes for spare in self._spare.values() for buffer in spare)
