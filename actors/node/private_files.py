"""Folders and files of ours in places where every user of the machine may make some.

In /tmp and /dev/shm another user may have been there first, with a folder, a link or a file of his
under the name that ours would have. So a folder is used only if it is one, ours, and closed to all
others; and what is in it is reached through its descriptor, follows no link, and has to be a file
of ours too. Then nobody else can have made it, and nobody can change it meanwhile.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OWNER_ONLY = 0o600
_FOLDER_MODE = 0o700
_OTHERS = 0o077


def make_folder(folder: Path) -> None:
    """Make it, or see that it is ours. Raises: OSError; PermissionError if it is not ours alone."""
    with suppress(FileExistsError):
        folder.mkdir(mode=_FOLDER_MODE)
    with opened(folder):
        pass


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """Its descriptor. Raises: as `make_folder`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_folder(folder, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: Path, flags: int, *, folder: int | None = None) -> int:
    """A file of ours, by its name in a `folder` that is open, or else by its path.

    Raises: OSError; PermissionError if it is a link, no plain file, or another user's.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    name = path if folder is None else path.name
    descriptor = os.open(name, flags, OWNER_ONLY, dir_fd=folder)
    try:
        _check_file(path, os.fstat(descriptor))
    except PermissionError:
        os.close(descriptor)
        raise
    return descriptor


def _check_folder(folder: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise PermissionError(
            f"{folder} belongs to user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}; "
            f"expected user {os.geteuid()}, mode 0700: it is not used; remove it"
        )


def _check_file(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
        raise PermissionError(
            f"{path} belongs to user {found.st_uid} or is no plain file; expected one of user "
            f"{os.geteuid()}: it is not used; remove it"
        )
