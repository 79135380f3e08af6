"""Storage behind any fsspec file system: S3, GCS, Azure, and whatever else has a driver.

fsspec is the way in because a put that must not replace, which the claims of a run and its commits
rest on, is one argument there (`mode="create"`): on S3 a conditional put (If-None-Match: *), on GCS
and Azure its like, in multipart uploads too. pyarrow.fs has no such put. botocore has it, but
multipart uploads, ranges and the other clouds would have to be written here once more.

Object stores put all or nothing, and they decide themselves whether a path is there. The others get
a temporary name and a rename, and a look before a put that must not replace: of two callers within
milliseconds both can win there.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from mmap import mmap
from secrets import token_hex
from typing import Any

from fsspec import AbstractFileSystem

from remesh.actors.storage.file_storage import TEMPORARY
from remesh.actors.storage.patience import Patience, within
from remesh.parallel.state.storage import Blob, Head, scatter

_COMPARED_BYTES = 1 << 25

# Whose drivers cut what is larger than this, so that no copy of all of it is made.
_CUTTING = {"s3", "s3a", "gs", "gcs"}
_CUT_BYTES = 1 << 27

OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"}


class RemoteStorage:
    """Paths are relative, with "/", below `root`; messages name `url`, and no `hidden` word.

    Raises: OSError with the cure, once patience is at its end.
    """

    def __init__(
        self,
        files: AbstractFileSystem,
        root: str,
        url: str,
        patience: Patience | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        self._files = files
        self._root = root.strip("/") if _is_object_store(files) else root.rstrip("/")
        self._url = url
        self._patience = patience or Patience()
        self._hidden = hidden

    def get(self, path: str) -> bytes:
        data: bytes = self._ask("get", path, self._call("cat_file", self._full(path)))
        return data

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        call = self._call("cat_file", self._full(path), start=offset, end=offset + length)

        def read(limit_s: float) -> bytes:
            try:
                data: bytes = call(limit_s)
            except OSError as error:
                if _code(error) != "InvalidRange":
                    raise
                return b""  # it begins beyond the end
            return data

        return self._ask("get", path, read, num_bytes=length) if length else b""

    def read_into(self, path: str, offset: int, into: Sequence[memoryview]) -> int:
        """Its drivers hand out memory of their own: here it is copied."""
        return scatter(self.get_range(path, offset, sum(map(len, into))), into)

    def put(self, path: str, data: Blob) -> None:
        if _is_object_store(self._files):
            self._put(path, self._full(path), data)
            return
        folder, _, name = self._full(path).rpartition("/")
        temporary = f"{folder}/{TEMPORARY}{token_hex(8)}-{name}"
        self._ask("put", path, self._call("makedirs", folder, exist_ok=True))
        self._put(path, temporary, data)
        self._ask("put", path, self._call("mv", temporary, self._full(path)))

    def put_if_absent(self, path: str, data: Blob, head: Head | None = None) -> bool:
        """Whether the bytes there are this call's: callers who race have to put different ones."""
        if head:
            head.fill()
        if not _is_object_store(self._files):
            if self._ask("get", path, self._call("exists", self._full(path))):
                return False
            self.put(path, data)
            return True
        call = self._call("pipe_file", self._full(path), self._plain(data), mode="create")

        def create(limit_s: float) -> None:
            try:
                call(limit_s)
            except OSError as error:
                if _code(error) != "PreconditionFailed":
                    raise
                raise FileExistsError(path) from None

        try:
            self._ask("put", path, create, num_bytes=len(data))
        except FileExistsError:
            # An earlier try of ours may have put it and lost the answer; below us they try again
            # too (aiohttp does, once), so that we cannot know.
            return self._holds(path, data)
        return True

    def _holds(self, path: str, data: Blob) -> bool:
        """Piece by piece: a shard may have many times the memory that is left."""
        view = memoryview(data)
        pieces = range(0, len(view) + 1, _COMPARED_BYTES)
        return all(
            self.get_range(path, start, _COMPARED_BYTES) == view[start : start + _COMPARED_BYTES]
            for start in pieces
        )

    def list(self, prefix: str = "") -> list[str]:
        folder = prefix.rpartition("/")[0]
        found: list[str] = []
        with suppress(FileNotFoundError):
            found = self._ask("list", folder, self._call("find", self._full(folder)))
        root = self._files._strip_protocol(self._root)  # noqa: SLF001 - fsspec's word for it
        paths = [path.removeprefix(root).lstrip("/") for path in found]
        return sorted(
            path
            for path in paths
            if path.startswith(prefix) and not path.rpartition("/")[2].startswith(TEMPORARY)
        )

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._ask("delete", path, self._call("rm_file", self._full(path)))

    def move(self, path: str, to: str) -> None:
        """Copied by the store itself, then deleted: it has no rename."""
        source, target = self._full(path), self._full(to)
        if _is_object_store(self._files):
            size = self._ask("get", path, self._call("size", source))
            copy = self._call("cp_file", source, target)
            self._ask("copy", path, copy, num_bytes=size)
            self.delete(path)
            return
        self._ask("put", to, self._call("makedirs", target.rpartition("/")[0], exist_ok=True))
        self._ask("move", path, self._call("mv", source, target))

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def _put(self, path: str, full: str, data: Blob) -> None:
        call = self._call("pipe_file", full, self._plain(data))
        try:
            self._ask("put", path, call, num_bytes=len(data))
        except FileNotFoundError:
            raise OSError(errno.EIO, f"{self._url} is not there; create it first") from None

    def _plain(self, data: Blob) -> bytes | bytearray | mmap:
        """As the drivers take it."""
        if isinstance(data, mmap) and len(data) >= _CUT_BYTES:
            return bytes(data) if _CUTTING.isdisjoint(_names(self._files)) else data
        return bytes(data) if isinstance(data, (memoryview, mmap)) else data

    def _call(self, method: str, *args: Any, **options: Any) -> Callable[[float], Any]:
        """The call of the library, still to be told how long it may take."""
        call = getattr(self._files, method)
        if self._files.async_impl:  # it cancels what takes too long
            return lambda limit_s: call(*args, timeout=limit_s, **options)
        return partial(within, call=partial(call, *args, **options))

    def _ask(
        self, verb: str, path: str, call: Callable[[float], Any], *, num_bytes: int = 0
    ) -> Any:
        what = f"{self._url}: {verb} {path}"
        return self._patience.ask(call, what=what, num_bytes=num_bytes, hidden=self._hidden)


def _is_object_store(files: AbstractFileSystem) -> bool:
    return not OBJECT_STORES.isdisjoint(_names(files))


def _names(files: AbstractFileSystem) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def _code(error: OSError) -> str:
    """What the server called it, where the library tells."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
