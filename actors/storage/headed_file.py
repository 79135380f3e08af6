"""A large file whose first bytes are found while the rest of it is written, past the page cache.

A page of the cache costs more than the disk does: the kernel has to find it, to copy into it and to
write it out behind, and a virtual machine often gets it from its host first (290 ms of a core for
100 MB that a disk takes in 52). So whole blocks go to the disk as they lie in memory, and the cores
are free for the hashes. A file that was written so is not in the cache: who reads it soon reads at
the disk's speed. File systems that know no such way get the blocks through the cache.
"""

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

from remesh.data.durable import Disk
from remesh.parallel.state.storage import Head

BLOCK_BYTES = 4096

# At once through the cache: with more, ext4 looks for large pages, which takes several times as
# long as writing.
CACHED_BYTES = 2**20

# At once past it. Between two pieces the writer may wait for the thread that hashes, several
# milliseconds each time, with the disk idle.
_DIRECT_BYTES = 2**26

_NO_SUCH_WAY = (errno.EINVAL, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class HeadedFile:
    """A new file that will hold all of `data`."""

    disk: Disk
    file: BinaryIO
    data: memoryview

    def write(self, head: Head) -> None:
        """Writes it, the head last.

        Raises: OSError as the file system gives it; what `head.fill` raises.
        """
        first = min(-(-head.num_bytes // BLOCK_BYTES) * BLOCK_BYTES, len(self.data))
        last = first + (len(self.data) - first) // BLOCK_BYTES * BLOCK_BYTES
        passes = first < last and self._passes_by()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="blocks") as beside:
            # It begins with the call that writes, before the hashes take hold of the interpreter.
            placed = beside.submit(self._place_blocks if passes else self._place, first, last)
            head.fill()
            placed.result()
        self._place(last, len(self.data))
        self._place(0, first)

    def _passes_by(self) -> bool:
        """Whether blocks may go past the cache from now on. Memory has to lie as they do."""
        import numpy as np  # noqa: PLC0415 - who only looks at files does without

        if np.frombuffer(self.data, np.uint8).ctypes.data % BLOCK_BYTES:
            return False
        try:
            self.disk.pass_by_cache(self.file, passing=True)
        except OSError as error:
            if error.errno not in _NO_SUCH_WAY:
                raise
            return False
        return True

    def _place_blocks(self, first: int, last: int) -> None:
        try:
            self._place(first, last, _DIRECT_BYTES)
        except OSError as error:
            if error.errno not in _NO_SUCH_WAY:
                raise
        else:
            last = first
        finally:
            self.disk.pass_by_cache(self.file, passing=False)
        self._place(first, last)

    def _place(self, at: int, end: int, at_once: int = CACHED_BYTES) -> None:
        while at < end:
            at += self.disk.place(self.file, self.data[at : min(at + at_once, end)], at)
