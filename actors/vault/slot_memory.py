"""A slot: memory of one snapshot, filled by a worker and kept by its vault.

It is a file in shared memory. The vault makes it and fills its pages, so that the worker's copy is
one memcpy, and the worker maps it, so that its death leaves the slot as it is. Before the snapshot,
which is laid out as a shard of a checkpoint is, stand two words: how far it is, and its step. The
worker alone says that it writes and has written, the vault alone that the slot is sealed.

A lock on the file tells whether a worker may still write to it: the worker shares it for as long as
it has the slot mapped, and the kernel drops it with the process, not before its memory is gone. The
vault holds it alone whenever nobody is to write there. A worker that was frozen between hearing of
a slot and mapping it finds no file of that name: the name is another for each lease.
"""

import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np

from remesh.actors.node.private_files import OWNER_ONLY, open_file
from remesh.orchestrator.vault.vault_words import SlotState, SlotWord

CONTROL_BYTES = 4096  # a page: the shard begins on one of its own


class SlotMemory:
    """The words and the bytes of a slot, mapped for reading and writing; `descriptor` locks it."""

    def __init__(self, path: Path, descriptor: int, memory: mmap.mmap) -> None:
        self.path = path
        self._descriptor = descriptor  # the memory has a copy of it, which holds the lock as well
        self._words = np.frombuffer(memory, dtype=np.int64, count=2)
        self.shard = memoryview(memory)[CONTROL_BYTES:]

    @classmethod
    def make(cls, path: Path, size_bytes: int) -> Self:
        """A free slot for so many bytes, every page of it there already, which nobody can map.

        Raises: OSError, with nothing left, if there is no room.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, OWNER_ONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, CONTROL_BYTES + size_bytes)
            return cls(path, descriptor, _mapped(descriptor, CONTROL_BYTES + size_bytes))
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """The slot in this file, for a worker that writes to it until it closes it.

        Raises: OSError if there is none, it is not ours, or it is not to be written to any more.
        """
        descriptor = open_file(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _check_name(path, descriptor)
            return cls(path, descriptor, _mapped(descriptor, os.fstat(descriptor).st_size))
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Unmap it, and so unlock it, once nobody has views of it any more. Repeatable."""
        self.shard = memoryview(b"")
        self._words = np.zeros(2, dtype=np.int64)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def offer(self, path: Path) -> None:
        """Let a worker map it, under this name. Raises: OSError."""
        self.path.rename(path)
        self.path = path
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def withdraw(self) -> bool:
        """Whether nobody has it mapped; from then on nobody can map it."""
        with suppress(BlockingIOError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    @property
    def size_bytes(self) -> int:
        return len(self.shard)

    @property
    def state(self) -> SlotState:
        """FREE too if what stands there is no state."""
        found = int(self._words[0])
        return SlotState(found) if found in SlotState.__members__.values() else SlotState.FREE

    @state.setter
    def state(self, state: SlotState) -> None:
        self._words[0] = state

    @property
    def step(self) -> int:
        return int(self._words[1])

    @step.setter
    def step(self, step: int) -> None:
        self._words[1] = step

    @property
    def word(self) -> SlotWord:
        return SlotWord(state=self.state, step=self.step)


def _check_name(path: Path, descriptor: int) -> None:
    if not os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False)):
        raise FileNotFoundError(f"{path} is the slot of another lease by now")


def _mapped(descriptor: int, size_bytes: int) -> mmap.mmap:
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return mmap.mmap(descriptor, size_bytes, flags=flags)
