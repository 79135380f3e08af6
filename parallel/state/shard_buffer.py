"""A rank's shard in memory that is laid out once: a save then costs one copy of the tensors.

All that depends on what a rank holds and not on the values (the order of the file, the header, the
places of the tensors) is worked out once, and every page of the memory is there before a save needs
it: pages that the kernel still has to find cost several times as much as the copy.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from mmap import mmap

import numpy as np
import torch
from torch import Tensor

from remesh.parallel.pages.large_pages import untouched
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import ShardHeader, in_file_order, lay_out
from remesh.parallel.state.root_manifest import CheckpointRef, ShardFile
from remesh.parallel.state.shards import copy_of, put_shard
from remesh.parallel.state.storage import Storage

# No number of a checkpoint has more digits: the header has room for those of every save.
_LONGEST = CheckpointRef(step=2**40, generation=2**40, start=2**40)
_PAGE_BYTES = 4096


class ShardBuffer:
    """Copies and writes the same `part` of the state again and again; its tensors are views.

    `memory` is that of a buffer which nobody needs any more: it is used again where it has the
    right size, since memory that has been used before is several times as fast.
    """

    def __init__(self, part: Sequence[tuple[Fragment, Tensor]], memory: mmap | None = None) -> None:
        tensors = {fragment: tensor.detach() for fragment, tensor in part}
        self._fragments = in_file_order(tensors)
        self._tensors = [tensors[fragment] for fragment in self._fragments]
        self._copies: list[Callable[[], object]] = []
        self._memory = memory
        self._header: ShardHeader | None = None

    @property
    def memory(self) -> mmap:
        """For the next buffer, once nobody needs this one any more."""
        assert self._memory, "prepare comes first"
        return self._memory

    def prepare(self) -> None:
        """Lays all out, without a look at values: also while the tensors change. Repeatable."""
        if self._header:
            return
        _, header = lay_out(_LONGEST, self._fragments)
        if self._memory is None or len(self._memory) != header.size_bytes:
            self._memory = _touched(header.size_bytes)
        file_B = torch.frombuffer(self._memory, dtype=torch.uint8)
        for part, tensor in zip(header.parts, self._tensors, strict=True):
            place = file_B[part.start : part.end].view(tensor.dtype).view(tensor.shape)
            self._copies.append(copy_of(place, tensor))
        self._header = header

    def copy(self, ref: CheckpointRef) -> None:
        """Takes the values that the tensors have now. Cost: each byte is copied once."""
        self.prepare()
        assert self._header
        self._header = replace(self._header, ref=ref)
        for copy in self._copies:
            copy()

    def write(self, storage: Storage, path: str) -> ShardFile:
        """Puts what was copied. Raises as `write_shard`."""
        assert self._header, "copy comes first"
        return put_shard(storage, path, self.memory, self._header)


def _touched(size_bytes: int) -> mmap:
    memory = untouched(size_bytes)
    np.frombuffer(memory, np.uint8)[::_PAGE_BYTES] = 0
    return memory
