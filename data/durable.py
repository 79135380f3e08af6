"""Files that appear whole or not at all, also after a power cut.

All that changes a disk goes through `Disk`, so that a test can stop at each of these calls.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".partial"


class Disk:
    """The calls of the operating system."""

    def create(self, path: Path, mode: int) -> BinaryIO:
        """A new file to write, or an old one emptied."""
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb")

    def append(self, file: BinaryIO, data: bytes | bytearray) -> int:
        """How many of these bytes a file without a buffer of its own has taken."""
        return file.write(data)

    def place(self, file: BinaryIO, data: memoryview, at: int) -> int:
        """How many of these bytes the file has taken, from `at` on."""
        return os.pwrite(file.fileno(), data, at)

    def pass_by_cache(self, file: BinaryIO, *, passing: bool) -> None:
        """What is placed from now on goes to the disk, in whole blocks, or to the page cache.

        Raises: OSError with EINVAL, here or later, where the file system has no such way.
        """
        flags = fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT if passing else flags)

    def sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Raises: FileExistsError, for all callers on all hosts but one."""
        try:
            target.hardlink_to(source)
        except FileExistsError:
            # NFS may lose the answer to a link that was made, and refuse the second request.
            if source.stat().st_nlink == 1:
                raise

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)

    def remove_folder(self, folder: Path) -> None:
        folder.rmdir()

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder as durable as the files."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


DISK = Disk()


@contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its name only when the block ends well and its bytes are safe.

    The suffix `.partial` marks it until then; one writer at a time.
    """
    with appearing(path, path.with_name(path.name + TEMPORARY)) as file:
        yield file
    DISK.sync_folder(path.parent)


@contextmanager
def appearing(
    path: Path,
    temporary: Path,
    *,
    replaces: bool = True,
    mode: int = 0o666,
    disk: Disk = DISK,
) -> Iterator[BinaryIO]:
    """A file to write as `temporary`, which becomes `path` when the block ends well.

    Its bytes are safe then; its name is once the folder has been synced. Without `replaces` a file
    that is there already stays. Raises: FileExistsError in this case.
    """
    try:
        with disk.create(temporary, mode) as file:
            yield file
            disk.sync(file)
        if replaces:
            disk.replace(temporary, path)
        else:
            disk.link(temporary, path)
    except BaseException:
        disk.unlink(temporary)
        raise
    if not replaces:
        disk.unlink(temporary)
