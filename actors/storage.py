"""Storage on a local or shared file system: what a run keeps, below one folder."""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".tmp-"
ABANDONED_S = 60.0


class LocalStorage:
    """Paths are relative, with "/". A file under its final name is complete and on disk.

    Raises: OSError as the file system gives it (full disk, no permission).
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        with (self.root / path).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def put(self, path: str, data: bytes) -> None:
        """Write under a temporary name, then rename: readers see the old bytes or the new."""
        target = self.root / path
        with _written_beside(target, data) as temporary:
            temporary.replace(target)
            _sync_folder(target.parent)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Whether this call created the file: of all callers on all hosts exactly one does."""
        target = self.root / path
        with _written_beside(target, data) as temporary:
            try:
                target.hardlink_to(temporary)
            except FileExistsError:
                return False
            _sync_folder(target.parent)
            return True

    def list(self, prefix: str = "") -> list[str]:
        """Names of all files whose path starts with `prefix`, sorted; unfinished ones left out."""
        return sorted(path for path in self._walk(prefix) if not _is_temporary(path))

    def delete(self, path: str) -> None:
        """Remove a file and the folders that it leaves empty; a missing one is no error."""
        target = self.root / path
        target.unlink(missing_ok=True)
        for folder in target.parents:
            if folder == self.root:
                return
            try:
                folder.rmdir()
            except OSError:  # not empty
                return

    def sweep(self) -> None:
        """Remove what writers that died have left unfinished: no write goes on for a minute."""
        for path in filter(_is_temporary, self._walk("")):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - (self.root / path).stat().st_mtime > ABANDONED_S:
                    self.delete(path)

    def _walk(self, prefix: str) -> Iterator[str]:
        """A folder that cannot be read is an error: a run must not take it for an empty one."""
        start = self.root / prefix.rpartition("/")[0]
        for folder, _, files in os.walk(start, onerror=_unless_missing):
            paths = [str(Path(folder, name).relative_to(self.root)) for name in files]
            yield from (path for path in paths if path.startswith(prefix))


def _is_temporary(path: str) -> bool:
    return path.rpartition("/")[2].startswith(TEMPORARY)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@contextlib.contextmanager
def _written_beside(target: Path, data: bytes) -> Iterator[Path]:
    _make_folder(target.parent)
    temporary = target.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Durable as what is put in it has to be."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
