"""Storage that can be full for a while: a fault on order for whoever writes to it."""

import errno
import os
import time

from remesh.parallel.state.storage import Blob, Storage


class FullStorage:
    """Nothing can be written until a moment that `fill` names; else as what it wraps."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._full_until_s = 0.0

    def fill(self, until_s: float) -> None:
        """It is full until then, on the clock `time.monotonic`."""
        self._full_until_s = until_s

    def get(self, path: str) -> bytes:
        return self._storage.get(path)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._storage.get_range(path, offset, length)

    def put(self, path: str, data: Blob) -> None:
        self._check(path)
        self._storage.put(path, data)

    def put_if_absent(self, path: str, data: Blob) -> bool:
        self._check(path)
        return self._storage.put_if_absent(path, data)

    def list(self, prefix: str) -> list[str]:
        return self._storage.list(prefix)

    def delete(self, path: str) -> None:
        self._storage.delete(path)

    def _check(self, path: str) -> None:
        if time.monotonic() < self._full_until_s:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
