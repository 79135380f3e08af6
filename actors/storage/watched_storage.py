"""Storage that tells how much has been read of it: progress for whatever reads."""

from collections.abc import Callable, Sequence
from threading import Lock

from remesh.parallel.state.storage import Blob, Head, Storage

Tell = Callable[[int], None]


class WatchedStorage:
    """Tells the bytes read so far after every `every_bytes` of them; else as what it wraps."""

    def __init__(self, storage: Storage, tell: Tell, every_bytes: int = 2**30) -> None:
        self._storage = storage
        self._tell = tell
        self._every_bytes = every_bytes
        self._read_bytes = 0
        self._lock = Lock()

    def get(self, path: str) -> bytes:
        return self._count(self._storage.get(path))

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._count(self._storage.get_range(path, offset, length))

    def read_into(self, path: str, offset: int, into: Sequence[memoryview]) -> int:
        return self._add(self._storage.read_into(path, offset, into))

    def put(self, path: str, data: Blob) -> None:
        self._storage.put(path, data)

    def put_if_absent(self, path: str, data: Blob, head: Head | None = None) -> bool:
        return self._storage.put_if_absent(path, data, head)

    def list(self, prefix: str) -> list[str]:
        return self._storage.list(prefix)

    def delete(self, path: str) -> None:
        self._storage.delete(path)

    def _count(self, data: bytes) -> bytes:
        self._add(len(data))
        return data

    def _add(self, num_bytes: int) -> int:
        with self._lock:
            before = self._read_bytes // self._every_bytes
            self._read_bytes += num_bytes
            if self._read_bytes // self._every_bytes > before:
                self._tell(self._read_bytes)
        return num_bytes
