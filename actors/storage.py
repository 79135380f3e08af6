"""Storage on a local or shared file system: what a run keeps, below one folder."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".tmp-"


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
            return os.pread(file.fileno(), length, offset)

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
        start = self.root / prefix.rpartition("/")[0]
        names = [
            str(Path(folder, name).relative_to(self.root))
            for folder, _, files in os.walk(start)
            for name in files
            if not name.startswith(TEMPORARY)
        ]
        return sorted(name for name in names if name.startswith(prefix))

    def delete(self, path: str) -> None:
        """Remove a file and the folders that it leaves empty; a missing one is no error."""
        target = self.root / path
        target.unlink(missing_ok=True)
        for folder in target.parents:
            if folder == self.root:
                return
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def _written_beside(target: Path, data: bytes) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
