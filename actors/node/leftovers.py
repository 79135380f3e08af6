"""Folders of vaults in shared memory, and what those have left that are dead.

A lock on a file in the folder, which the kernel drops with the process, tells a vault that lives
from one that is dead, whatever its pid; so whoever comes next can remove what a dead one has left.
A folder without that file is no vault's, and nothing is removed but what a vault makes.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from remesh.actors.node.private_files import open_file, opened

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the vaults' folders are their own, of mode 0700
LOCK = "lock"
_PREFIX = "remesh-"


def folder_name(run: str, node: str) -> str:
    """Of the folder of one run's vault on one node: several nodes may share a machine."""
    return f"{_PREFIX}{run}-{node}"


def sweep(run: str, place: Path = SHARED_MEMORY) -> None:
    """Remove what vaults of this run that are dead have left on this machine."""
    for folder in place.glob(f"{_PREFIX}{run}-*"):
        # Not there any more, another user's, or no vault's.
        with suppress(OSError):
            lock = locked(folder)
            try:
                remove(folder)
            finally:
                os.close(lock)


def sweep_all(place: Path = SHARED_MEMORY) -> None:
    """Remove what dead vaults of any run have left on this machine."""
    sweep("*", place)


def remove(folder: Path) -> None:
    """Remove the folder of a vault: its slots, its lock, and itself unless more is in it.

    Raises: OSError.
    """
    clear(folder)
    with opened(folder) as own:
        os.unlink(LOCK, dir_fd=own)
    folder.rmdir()


def clear(folder: Path) -> None:
    """Remove the slots of a vault. Raises: OSError."""
    with opened(folder) as own:
        for name in os.listdir(own):  # noqa: PTH208 - of an open folder
            if name.isascii() and name.isdigit():
                os.unlink(name, dir_fd=own)


def locked(folder: Path, *, make: bool = False) -> int:
    """The lock of a folder, as an open file that holds it.

    Raises: OSError, if somebody has it, or if there is none and it is not to be made.
    """
    path = folder / LOCK
    with opened(folder) as own:
        lock = open_file(path, os.O_RDWR | (os.O_CREAT if make else 0), folder=own)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), path.stat(follow_symlinks=False)):
            raise FileNotFoundError(f"another was faster at {folder}")
    except OSError:
        os.close(lock)
        raise
    return lock
