"""Files read as what they have to be: regular ones, no larger than they can be.

A pipe in the place of a file would be waited for, and a device such as /dev/zero read without end.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

_MAX_VIEWS = os.sysconf("SC_IOV_MAX")  # that one call of the system fills


def open_regular(path: Path) -> BinaryIO:
    """A file to read. Raises: OSError, also if it is no regular file."""
    return os.fdopen(open_descriptor(path), "rb")


def open_descriptor(path: Path) -> int:
    """Likewise, for reads by offset."""
    # Without waiting: a pipe is opened as it is and refused.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def fill_from(descriptor: int, offset: int, into: Sequence[memoryview]) -> int:
    """Fills these, one after the other, with what the file has from `offset` on; how much that was.

    Nothing is copied twice. Raises: OSError.
    """
    left = [view for view in into if len(view)]
    filled = 0
    while left and (count := os.preadv(descriptor, left[:_MAX_VIEWS], offset + filled)):
        filled += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if left:
            left[0] = left[0][count:]
    return filled


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """All of a file. Raises: OSError, also if it is no regular file or larger than that."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > max_bytes:
            says = f"it has {size_bytes} bytes, and no file of its kind more than {max_bytes}"
            raise OSError(errno.EFBIG, says, str(path))
        return file.read()
