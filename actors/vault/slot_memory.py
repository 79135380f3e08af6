"""A slot: memory of one snapshot, filled by a worker and kept by its vault.

It is a file in shared memory. The vault makes it and fills its pages, so that the worker's copy is
one memcpy, and the worker maps it, so that its death leaves the slot as it is. Before the snapshot,
which is laid out as a shard of a checkpoint is, stand two words: how far it is, and its step. The
worker alone says that it writes and has written, the vault alone that the slot is sealed.
"""

import mmap
import os
from enum import IntEnum
from pathlib import Path
from typing import Self

import numpy as np

from remesh.actors.node.private_files import OWNER_ONLY, open_file

CONTROL_BYTES = 4096  # a page: the shard begins on one of its own


class SlotState(IntEnum):
    FREE = 0
    WRITING = 1
    COPIED = 2
    SEALED = 3


class SlotMemory:
    """The words and the bytes of a slot, mapped for reading and writing."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path = path
        self._words = np.frombuffer(memory, dtype=np.int64, count=2)
        self.shard = memoryview(memory)[CONTROL_BYTES:]

    @classmethod
    def make(cls, path: Path, size_bytes: int) -> Self:
        """A free slot for so many bytes, every page of it there already.

        Raises: OSError, with nothing left, if there is no room.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
        try:
            os.posix_fallocate(descriptor, 0, CONTROL_BYTES + size_bytes)
            return cls(path, _mapped(descriptor, CONTROL_BYTES + size_bytes))
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The slot in this file. Raises: OSError if there is none, or it is not ours."""
        descriptor = open_file(path, os.O_RDWR)
        try:
            return cls(path, _mapped(descriptor, os.fstat(descriptor).st_size))
        finally:
            os.close(descriptor)

    @property
    def size_bytes(self) -> int:
        return len(self.shard)

    @property
    def state(self) -> SlotState:
        return SlotState(int(self._words[0]))

    @state.setter
    def state(self, state: SlotState) -> None:
        self._words[0] = state

    @property
    def step(self) -> int:
        return int(self._words[1])

    @step.setter
    def step(self, step: int) -> None:
        self._words[1] = step

    def is_sealed_at(self, step: int) -> bool:
        return self.state is SlotState.SEALED and self.step == step


def _mapped(descriptor: int, size_bytes: int) -> mmap.mmap:
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return mmap.mmap(descriptor, size_bytes, flags=flags)
