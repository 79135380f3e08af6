"""The store of a group as torch's backends know one."""

from datetime import timedelta

from torch._C._distributed_c10d import Store

from remesh.parallel.groups.store import StoreClient


class TorchStore(Store):
    """What torch's backends ask of a store while they connect, by inheritance only."""

    def __init__(self, client: StoreClient) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self._client.set(key, value)

    def get(self, key: str) -> bytes:
        return self._client.get(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        del timeout  # the connection has its own
        for key in keys:
            self._client.get(key)
