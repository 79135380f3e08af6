"""Fresh memory whose pages are made when somebody fills them, in large ones if the kernel has some.

A page of 4 KB costs as much as five copies of it: a rank that joins fills its whole state at once.
"""

import mmap
from contextlib import suppress


def untouched(size_bytes: int) -> mmap.mmap:
    """Zeros that begin with a page, as a disk takes them from there; of this process alone."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
