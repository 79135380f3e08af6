"""Memory for what lives shorter than a step, used again: fresh pages cost as much as a copy.

After an operation that was left behind, and may still write to what it was given, the whole
workspace is dropped.
"""

from collections import defaultdict

import torch
from torch import Tensor


class Workspace:
    """Flat buffers by size and type. `lent_bytes` are those taken and not given back yet."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lent_bytes = 0
        self._spare: dict[tuple[int, torch.dtype], list[Tensor]] = defaultdict(list)

    def take(self, size: int, dtype: torch.dtype) -> Tensor:
        """A buffer with anything in it."""
        self.lent_bytes += size * dtype.itemsize
        spare = self._spare[size, dtype]
        return spare.pop() if spare else torch.empty(size, dtype=dtype, device=self.device)

    def take_zeros(self, size: int, dtype: torch.dtype) -> Tensor:
        self.lent_bytes += size * dtype.itemsize
        spare = self._spare[size, dtype]
        if spare:
            return spare.pop().zero_()
        return torch.zeros(size, dtype=dtype, device=self.device)

    def give(self, buffer: Tensor) -> None:
        self.lent_bytes -= buffer.nbytes
        self._spare[buffer.numel(), buffer.dtype].append(buffer)

    @property
    def spare_bytes(self) -> int:
        return sum(buffer.nbytes for spare in self._spare.values() for buffer in spare)
