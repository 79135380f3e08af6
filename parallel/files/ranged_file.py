"""A part of a blob on storage as a file to be read, and a zip archive in it."""

import io
import zipfile

from remesh.parallel.state.storage import Storage

_LOCAL_HEADER_BYTES = 30
# zipfile looks for the end of the table in so many bytes; the tables of torch are shorter.
_MAX_READ_BYTES = 2**16 + 22


class RangedFile:
    """The bytes [start, start + size) of a blob; only what is read is fetched, some at once.

    Raises: ValueError if too much is read at once.
    """

    def __init__(self, storage: Storage, path: str, start: int, size: int) -> None:
        self._storage = storage
        self._path = path
        self._start = start
        self._size = size
        self._at = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("seeks before the first byte")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._at, 0)
        length = left if size < 0 else min(size, left)
        if length > _MAX_READ_BYTES:
            raise ValueError(f"{length} bytes at once, where up to {_MAX_READ_BYTES} are expected")
        if not length:
            return b""
        data = self._storage.get_range(self._path, self._start + self._at, length)
        self._at += len(data)
        return data


class Archive:
    """A zip archive whose entries are stored as they are.

    Raises: ValueError if it is none, or an entry is missing, compressed or longer than the archive.
    """

    def __init__(self, file: RangedFile, size: int) -> None:
        try:
            entries = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
            raise ValueError(f"no zip archive: {error}") from None
        self._file = file
        self._size = size
        self._entries = {entry.filename.partition("/")[2]: entry for entry in entries}

    def read(self, name: str, max_bytes: int) -> bytes:
        start, size = self.place(name)
        if size > max_bytes:
            raise ValueError(f"{name} has {size} bytes, more than the {max_bytes} allowed")
        self._file.seek(start)
        return self._file.read(size)

    def place(self, name: str) -> tuple[int, int]:
        """Where the bytes of an entry begin in the archive, and how many they are."""
        entry = self._entries.get(name)
        if entry is None:
            raise ValueError(f"it has no {name}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed")
        if not 0 <= entry.header_offset < self._size:
            raise ValueError(f"{name} lies outside of the archive")
        self._file.seek(entry.header_offset)
        header = self._file.read(_LOCAL_HEADER_BYTES)
        lengths = [int.from_bytes(header[at : at + 2], "little") for at in (26, 28)]
        start = entry.header_offset + _LOCAL_HEADER_BYTES + sum(lengths)
        if start + entry.file_size > self._size:
            raise ValueError(f"{name} is longer than the archive")
        return start, entry.file_size
