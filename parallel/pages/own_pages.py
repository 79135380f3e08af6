"""Memory that one process writes and others on its host read: files in memory, without a name.

Nobody can find them by a name, so nothing is left behind by a process that is killed: the kernel
frees them with the last mapping. They are not in /dev/shm either, whose room a container bounds.
"""

import mmap
import os
import secrets
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

HEADER_BYTES = 4096  # the first of them are the key
KEY_BITS = 62
_ALIGNED_TO = 4096  # bytes: no two buffers share a page
_LEAST_BYTES = 64 << 20  # of a file; pages that nobody touches take no memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePlace:
    """Where a buffer lies in a process: a file by its descriptor there, and the offset in bytes.

    `key` stands at the beginning of the file, so that no other one is taken for it.
    """

    descriptor: int
    key: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    descriptor: int
    key: int
    memory: mmap.mmap
    address: int


class OwnPages:
    """Buffers for this process to write, that are freed as a whole: with the last use of each."""

    def __init__(self) -> None:
        self._files: list[_File] = []
        self._used = 0

    def take(self, size: int, dtype: torch.dtype) -> Tensor:
        """A buffer of zeros. Raises: OSError if the system gives none."""
        num_bytes = size * dtype.itemsize
        if not self._files or self._used + num_bytes > len(self._files[-1].memory):
            self._files.append(self._new_file(num_bytes))
            self._used = HEADER_BYTES
        start = self._used
        self._used += -(-num_bytes // _ALIGNED_TO) * _ALIGNED_TO
        return torch.frombuffer(self._files[-1].memory, dtype=dtype, count=size, offset=start)

    def place(self, buffer: Tensor) -> PagePlace:
        """Where others find a buffer that was taken here."""
        for file in self._files:
            offset = buffer.data_ptr() - file.address
            if 0 <= offset < len(file.memory):
                return PagePlace(descriptor=file.descriptor, key=file.key, offset=offset)
        raise AssertionError(buffer.shape)

    def _new_file(self, num_bytes: int) -> _File:
        descriptor = os.memfd_create("remesh pages", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, max(_LEAST_BYTES, HEADER_BYTES + num_bytes))
        key = secrets.randbits(KEY_BITS)
        memory = mmap.mmap(descriptor, 0)
        memory[:8] = key.to_bytes(8, "little")
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        return _File(descriptor=descriptor, key=key, memory=memory, address=address)
