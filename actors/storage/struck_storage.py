"""Storage that is full, or stands still, for a while: a fault on order for whoever writes to it."""

import errno
import os
import time
from collections.abc import Callable, Sequence

from remesh.parallel.state.storage import Blob, Head, Storage


class StruckStorage:
    """As what it wraps, but for what was asked for. Moments are of the clock `time.monotonic`."""

    def __init__(self, storage: Storage, sleep: Callable[[float], None] = time.sleep) -> None:
        self._storage = storage
        self._sleep = sleep
        self._full_until_s = 0.0
        self._still_until_s = 0.0

    def fill(self, until_s: float) -> None:
        """Nothing can be written until then."""
        self._full_until_s = until_s

    def stop(self, until_s: float) -> None:
        """Whatever is written lasts until then."""
        self._still_until_s = until_s

    def get(self, path: str) -> bytes:
        return self._storage.get(path)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._storage.get_range(path, offset, length)

    def read_into(self, path: str, offset: int, into: Sequence[memoryview]) -> int:
        return self._storage.read_into(path, offset, into)

    def put(self, path: str, data: Blob) -> None:
        self._check(path)
        self._storage.put(path, data)

    def put_if_absent(self, path: str, data: Blob, head: Head | None = None) -> bool:
        self._check(path)
        return self._storage.put_if_absent(path, data, head)

    def list(self, prefix: str) -> list[str]:
        return self._storage.list(prefix)

    def delete(self, path: str) -> None:
        self._storage.delete(path)

    def _check(self, path: str) -> None:
        if (left_s := self._still_until_s - time.monotonic()) > 0:
            self._sleep(left_s)
        if time.monotonic() < self._full_until_s:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
