"""The memory of a vault: slots in a folder of its own in shared memory, within bounds."""

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from remesh.actors.node.leftovers import clear, locked, remove
from remesh.actors.node.private_files import make_folder
from remesh.actors.vault.slot_memory import CONTROL_BYTES, SlotMemory

KEPT_FREE = 8  # one part in so many of all shared memory is left to others
_TRIES = 20
_TRY_AGAIN_S = 0.05


class NoRoomError(OSError):
    """Shared memory, or the part of it that the job allows, has no room for a slot."""


class VaultMemory:
    """`limit_bytes` bounds all slots together; 0 for as much as is needed and there."""

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int = 0,
        free_bytes: Callable[[Path], int] | None = None,
        tries: int = _TRIES,
    ) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._free_bytes = free_bytes or _free_bytes
        self._tries = tries
        self._numbers = itertools.count()
        self._made: dict[Path, int] = {}
        self._free: list[SlotMemory] = []
        self._lists = threading.Lock()
        self._lock = -1

    def open(self) -> None:
        """Make the folder, in the place of what a dead vault has left there.

        Raises: OSError; BlockingIOError if a vault that lives has it; PermissionError if somebody
            else has made it.
        """
        for tries_left in reversed(range(self._tries)):
            try:
                make_folder(self.folder)
                self._lock = locked(self.folder, make=True)
                break
            except PermissionError:
                raise
            except OSError:  # a sweep looks at it, or has removed it
                if not tries_left:
                    raise
                time.sleep(_TRY_AGAIN_S)
        clear(self.folder)

    def close(self) -> None:
        """Remove the folder. What others have mapped of it stays theirs until they let it go."""
        if self._lock >= 0:
            with suppress(OSError):  # removed already
                remove(self.folder)
            os.close(self._lock)
            self._lock = -1

    @property
    def used_bytes(self) -> int:
        return sum(self._made.values())

    def take(self, size_bytes: int) -> SlotMemory:
        """A free slot of this size, one that was in use before if there is one.

        Raises: NoRoomError.
        """
        with self._lists:
            for number, memory in enumerate(self._free):
                if memory.size_bytes == size_bytes:
                    return self._free.pop(number)
            self._trim()
            self._check_room(CONTROL_BYTES + size_bytes)
            path = self.folder / f"{next(self._numbers)}"
            self._made[path] = CONTROL_BYTES + size_bytes
        try:
            return SlotMemory.make(path, size_bytes)  # takes long, and others may go on
        except OSError as error:
            del self._made[path]
            raise NoRoomError(
                error.errno, f"no room for a snapshot of {size_bytes} bytes: {error.strerror}"
            ) from None

    def offer(self, memory: SlotMemory) -> None:
        """Let a worker map it, under a name that nobody has heard of. Raises: OSError."""
        with self._lists:
            path = self.folder / f"{next(self._numbers)}"
            before = memory.path
            memory.offer(path)
            self._made[path] = self._made.pop(before)

    def give_back(self, memory: SlotMemory) -> None:
        """Nobody else writes to it any more."""
        with self._lists:
            self._free.append(memory)

    def trim(self) -> None:
        """Give what is free back to the system."""
        with self._lists:
            self._trim()

    def _trim(self) -> None:
        for memory in self._free:
            memory.path.unlink(missing_ok=True)
            memory.close()
            del self._made[memory.path]
        self._free.clear()

    def _check_room(self, size_bytes: int) -> None:
        if self._limit_bytes and self.used_bytes + size_bytes > self._limit_bytes:
            raise NoRoomError(
                f"a snapshot of {size_bytes} bytes beside {self.used_bytes} in use is more than "
                f"checkpoint.vault_bytes = {self._limit_bytes}; raise it, or set it to 0"
            )
        free = self._free_bytes(self.folder)
        if size_bytes > free:
            raise NoRoomError(
                f"a snapshot needs {size_bytes} bytes, and {self.folder.parent} has {free} to "
                "spare; give it more memory, or set checkpoint.snapshot_every to 0"
            )


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return (found.f_bavail - found.f_blocks // KEPT_FREE) * found.f_frsize
