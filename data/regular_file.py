"""Files read as what they have to be: regular ones, no larger than they can be.

A pipe in the place of a file would be waited for, and a device such as /dev/zero read without end.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


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


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """All of a file. Raises: OSError, also if it is no regular file or larger than that."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > max_bytes:
            says = f"it has {size_bytes} bytes, and no file of its kind more than {max_bytes}"
            raise OSError(errno.EFBIG, says, str(path))
        return file.read()
