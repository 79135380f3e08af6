"""Storage on a local or shared file system: what a run keeps, below one folder."""

import builtins
import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from remesh.actors.storage.headed_file import CACHED_BYTES, HeadedFile
from remesh.data.durable import DISK, Disk, appearing
from remesh.data.regular_file import fill_from, open_descriptor, open_regular, read_bounded
from remesh.parallel.state.storage import Blob, Head

TEMPORARY = ".tmp-"
ABANDONED_S = 60.0
ALL_MAY_READ = 0o666
OWNER_ONLY = 0o600

_MAX_GET_BYTES = 1 << 28  # of a file that is read whole: what is larger is read by ranges
_TEMPORARY_NAME = re.compile(re.escape(TEMPORARY) + r"[0-9a-f]{16}", re.ASCII)


class LocalStorage:
    """Paths are relative, with "/". A file under its final name is complete and on disk.

    Raises: OSError as the file system gives it (full disk, no permission).
    """

    def __init__(self, root: Path, disk: Disk = DISK) -> None:
        self.root = root
        self._disk = disk

    def get(self, path: str) -> bytes:
        return read_bounded(self.root / path, _MAX_GET_BYTES)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        with open_regular(self.root / path) as file:
            file.seek(offset)
            return file.read(length)

    def read_into(self, path: str, offset: int, into: Sequence[memoryview]) -> int:
        descriptor = open_descriptor(self.root / path)
        try:
            return fill_from(descriptor, offset, into)
        finally:
            os.close(descriptor)

    def put(self, path: str, data: Blob, *, mode: int = ALL_MAY_READ) -> None:
        """Write under a temporary name, then rename: readers see the old bytes or the new."""
        with self._appearing(path, replaces=True, mode=mode) as file:
            _write(file, data)
        self._sync_folders(path)

    def put_if_absent(self, path: str, data: Blob, head: Head | None = None) -> bool:
        """Whether this call created the file: of all callers on all hosts exactly one does."""
        try:
            with self._appearing(path, replaces=False, mode=ALL_MAY_READ) as file:
                if head:
                    HeadedFile(self._disk, file, memoryview(data)).write(head)
                else:
                    _write(file, data)
        except FileExistsError:
            created = False
        else:
            created = True
        self._sync_folders(path)  # also what another caller has just created has to last
        return created

    def list(self, prefix: str = "") -> list[str]:
        """Names of all files whose path starts with `prefix`, sorted; unfinished ones left out."""
        return sorted(path for path in self._walk(prefix) if not _is_temporary(path))

    def delete(self, path: str) -> None:
        """Remove a file and the folders that it leaves empty; a missing one is no error."""
        self._disk.unlink(self.root / path)
        self._tidy((self.root / path).parent)

    def move(self, path: str, to: str) -> None:
        """Give a file another path, at once; the folders that it leaves empty go."""
        source, target = self.root / path, self.root / to
        if not os.path.lexists(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        self._make_folder(target.parent)
        self._disk.replace(source, target)
        self._sync_folders(to)
        self._tidy(source.parent)

    def folders(self) -> builtins.list[str]:
        """Names of the folders in the root, without links to some."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return []

    def sweep(self, folders: Iterable[str]) -> None:
        """Remove what writers that died have left unfinished in these folders, "" being the root:
        no write goes on for a minute.
        """
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                for path in self._abandoned(folder):
                    self.delete(path)

    def _tidy(self, folder: Path) -> None:
        """Remove it, and those that it leaves empty."""
        while folder != self.root and self._removed(folder):
            folder = folder.parent
        # What is deleted later must not be gone while this one is back after a power cut.
        with contextlib.suppress(FileNotFoundError):
            self._disk.sync_folder(folder)

    def _abandoned(self, folder: str) -> builtins.list[str]:
        oldest_s = time.time() - ABANDONED_S
        with os.scandir(self.root / folder) as entries:
            return [
                f"{folder}/{entry.name}".lstrip("/")
                for entry in entries
                if _is_temporary(entry.name)
                and entry.is_file(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_mtime < oldest_s
            ]

    def _removed(self, folder: Path) -> bool:
        try:
            self._disk.remove_folder(folder)
        except FileNotFoundError:
            return True
        except OSError:  # not empty
            return False
        return True

    def _appearing(
        self, path: str, *, replaces: bool, mode: int
    ) -> contextlib.AbstractContextManager[BinaryIO]:
        target = self.root / path
        self._make_folder(target.parent)
        temporary = target.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
        return appearing(target, temporary, replaces=replaces, mode=mode, disk=self._disk)

    def _make_folder(self, folder: Path) -> None:
        """Durable where it lies above the root; `_sync_folders` cares for those below."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            self._disk.make_folder(folder)
            if self.root.is_relative_to(folder):
                self._disk.sync_folder(folder.parent)

    def _sync_folders(self, path: str) -> None:
        """All of them, since who made them may have died before it could."""
        for folder in (self.root / path).parents:
            self._disk.sync_folder(folder)
            if folder == self.root:
                return

    def _walk(self, prefix: str) -> Iterator[str]:
        """A folder that cannot be read is an error: a run must not take it for an empty one.

        One that holds no path with the prefix is not looked into.
        """
        start = self.root / prefix.rpartition("/")[0]
        for folder, folders, files in os.walk(start, onerror=_unless_missing):
            here = Path(folder).relative_to(self.root)
            folders[:] = [name for name in folders if str(here / name).startswith(prefix)]
            yield from (path for name in files if (path := str(here / name)).startswith(prefix))


def _write(file: BinaryIO, data: Blob) -> None:
    view, starts = memoryview(data), range(0, len(data), CACHED_BYTES)
    file.writelines(view[start : start + CACHED_BYTES] for start in starts)


def _is_temporary(path: str) -> bool:
    return _TEMPORARY_NAME.fullmatch(path.rpartition("/")[2]) is not None


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
