"""The hash of each row, from the file beside the manifest: 8 bytes a row, in the order of the rows.

A shuffled start meets almost every block for a row or two. So what is read is proven by the row and
not by the block, which would be read whole for it. The hashes are proven in turn by the manifest, a
block's at its first touch, and a few are kept: all of them would be memory that grows with the
dataset, in every worker.
"""

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from remesh.data.data_error import DataError
from remesh.data.digest import ExpectedDigests
from remesh.data.manifest import ROW_HASHES, Manifest
from remesh.data.order import Rows, Words
from remesh.data.regular_file import open_regular

HASH_BYTES = 8
MAX_KEPT_BYTES = 32 << 20

_ABSENT = -1


class RowHashes:
    """Looked up by the number of a block, counted over all shards, and of a row in it."""

    def __init__(
        self, folder: Path, manifest: Manifest, *, max_kept_bytes: int = MAX_KEPT_BYTES
    ) -> None:
        blocks = [block for shard in manifest.shards for block in shard.blocks]
        most = max(block.rows for block in blocks)
        self._path = folder / ROW_HASHES
        self._cure = manifest.cure(folder)
        self._size_bytes = manifest.num_rows * HASH_BYTES
        self._proofs = [block.row_hashes for block in blocks]
        self._num_rows = np.array([block.rows for block in blocks], np.int64)
        self._first_rows = self._num_rows.cumsum() - self._num_rows
        self.num_kept = min(len(blocks), max(1, max_kept_bytes // (most * HASH_BYTES)))
        self._kept = np.empty((self.num_kept, most), np.uint64)  # no memory before it is touched
        self._used = 0
        self._places = np.full(len(blocks), _ABSENT, np.int64)

    def check(self) -> None:
        """See that the file is there with the right size. Raises: DataError."""
        with self._open() as file:
            size = os.fstat(file.fileno()).st_size
        if size != self._size_bytes:
            says = f"{self._path} has {size} bytes, {self._size_bytes} are expected"
            raise DataError(f"{says}; {self._cure}")

    def verify(self) -> None:
        """Read all of it. Raises: DataError unless it is what the manifest proves."""
        self.check()
        with self._open() as file:
            for block in range(len(self._proofs)):
                self._read(file, block)

    def of(self, blocks: Rows, rows: Rows) -> Words:
        """The hashes of some rows of some blocks.

        Raises: DataError if the file is missing, or not the one that the manifest proves.
        """
        if len(blocks) > self.num_kept < len(self._proofs):
            half = len(blocks) // 2
            parts = self.of(blocks[:half], rows[:half]), self.of(blocks[half:], rows[half:])
            return np.concatenate(parts)
        places = self._places[blocks]
        if places.min() < 0:
            self._keep(np.unique(blocks))
            places = self._places[blocks]
        found: Words = self._kept[places, rows]
        return found

    def kept(self, blocks: Rows, rows: Rows) -> Words | None:
        """Likewise, if none of it has to be read."""
        places = self._places[blocks]
        return None if places.min() < 0 else self._kept[places, rows]

    def of_rows(self, rows: Rows) -> Words:
        """Likewise, of rows by their numbers in the dataset."""
        blocks = self._first_rows.searchsorted(rows, side="right") - 1
        return self.of(blocks, rows - self._first_rows[blocks])

    def _keep(self, blocks: Rows) -> None:
        """Read those that are not there. Without room for them all are forgotten first."""
        absent = blocks[self._places[blocks] == _ABSENT]
        if self._used + len(absent) > self.num_kept:
            self._places[:] = _ABSENT
            self._used, absent = 0, blocks
        with self._open() as file:
            for block in absent.tolist():
                hashes = self._read(file, block)
                self._kept[self._used, : len(hashes)] = hashes
                self._places[block] = self._used
                self._used += 1

    def _read(self, file: BinaryIO, block: int) -> Words:
        start = int(self._first_rows[block]) * HASH_BYTES
        size = int(self._num_rows[block]) * HASH_BYTES
        found = os.pread(file.fileno(), size, start)
        if (proof := xxhash.xxh3_64_hexdigest(found)) != self._proofs[block]:
            raise DataError(
                f"{self._path} is corrupt (bytes {start} to {start + size}, {len(found)} of which"
                f" are there): their xxh3 is {proof}, the manifest says {self._proofs[block]};"
                f" {self._cure}"
            )
        return np.frombuffer(found, "<u8")

    def _open(self) -> BinaryIO:
        """Kept open it would be one more thing to close: new blocks are rare after the start."""
        try:
            return open_regular(self._path)
        except OSError as error:
            says = f"cannot read {self._path}: {error.strerror}"
            raise DataError(f"{says}; {self._cure}") from None


def expected_digests(folder: Path, *, global_batch: int, seed: int) -> ExpectedDigests:
    """Those of the steps of a job with this dataset. Raises: DataError."""
    manifest = Manifest.load(folder)
    return ExpectedDigests(
        global_batch=global_batch,
        num_rows=manifest.num_rows,
        seed=seed,
        hashes_of=RowHashes(folder, manifest).of_rows,
    )
