"""Folders of vaults in shared memory, and what those have left that are dead.

A lock on a file in the folder, which the kernel drops with the process, tells a vault that lives
from one that is dead, whatever its pid; so whoever comes next can remove what a dead one has left.
"""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the vaults' folders are their own, of mode 0700
LOCK = "lock"
_PREFIX = "remesh-"


def folder_name(run: str, node: str) -> str:
    """Of the folder of one run's vault on one node: several nodes may share a machine."""
    return f"{_PREFIX}{run}-{node}"


def sweep(run: str, place: Path = SHARED_MEMORY) -> None:
    """Remove what vaults of this run that are dead have left on this machine."""
    for folder in place.glob(f"{_PREFIX}{run}-*"):
        # Not there any more, or another user's.
        with suppress(OSError):
            lock = locked(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def sweep_all(place: Path = SHARED_MEMORY) -> None:
    """Remove what dead vaults of any run have left on this machine."""
    sweep("*", place)


def locked(folder: Path) -> int:
    """The lock of a folder, as an open file that holds it. Raises: OSError, if somebody has it."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), (folder / LOCK).stat()):
            raise FileNotFoundError(f"another was faster at {folder}")
    except OSError:
        os.close(lock)
        raise
    return lock
