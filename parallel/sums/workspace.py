"""Memory for what lives shorter than a step, used again: fresh pages cost as much as a copy.

After an operation that was left behind, and may still write to what it was given, the whole
workspace is dropped.
"""

from collections import defaultdict

import torch
from torch import Tensor

from remesh.parallel.pages.own_pages import OwnPages


class Workspace:
    """Flat buffers by size and type, in `pages` if there are any, for others to read.

    `lent_bytes` are those taken and not given back yet.
    """

    def __init__(self, device: torch.device, pages: OwnPages | None = None) -> None:
        self.device = device
        self.pages = pages
        self.lent_bytes = 0
        self._spare: dict[tuple[int, torch.dtype], list[Tensor]] = defaultdict(list)

    def take(self, size: int, dtype: torch.dtype) -> Tensor:
        """A buffer with anything in it."""
        self.lent_bytes += size * dtype.itemsize
        spare = self._spare[size, dtype]
        if spare:
            return spare.pop()
        if self.pages is not None:
            return self.pages.take(size, dtype)
        return torch.empty(size, dtype=dtype, device=self.device)

    def take_zeros(self, size: int, dtype: torch.dtype) -> Tensor:
        is_new = not self._spare[size, dtype]
        if is_new and self.pages is None:
            self.lent_bytes += size * dtype.itemsize
            return torch.zeros(size, dtype=dtype, device=self.device)
        buffer = self.take(size, dtype)
        return buffer if is_new else buffer.zero_()

    def give(self, buffer: Tensor) -> None:
        self.lent_bytes -= buffer.nbytes
        self._spare[buffer.numel(), buffer.dtype].append(buffer)

    @property
    def spare_bytes(self) -> int:
        return sum(buffer.nbytes for spare in self._spare.values() for buffer in spare)
