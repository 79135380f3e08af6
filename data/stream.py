"""Samples of any step, filled into the caller's buffer; there is no iterator state to save.

What a step reads follows from its number alone, so a resume, a skip or another number of replicas
costs nothing and moves nothing. The order is computed for a window of positions at a time, because
numpy's cost a call is that of some hundred samples. For the same reason rows are read, hashed and
compared many at a time, without a line of Python for each.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from remesh.data.blocks import TOKEN_BYTES, ShardReader, Tokens
from remesh.data.cursor import batch_positions
from remesh.data.digest import StepDigest, sample_keys
from remesh.data.manifest import Manifest
from remesh.data.order import Rows, Words, rows_of
from remesh.data.row_hashes import RowHashes
from remesh.data.skips import Skips

Flags = npt.NDArray[np.bool_]

_WINDOW = 4096
_MAX_OPEN_SHARDS = 256
_MAX_ROWS = _MAX_OPEN_SHARDS  # that are read at once, each from a shard of its own at worst


class Stream:
    """Random access to the samples of every step of a job."""

    def __init__(
        self, folder: Path, manifest: Manifest, *, global_batch: int, seed: int, skips: Skips
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._global_batch = global_batch
        self._seed = seed
        self._skips = skips
        self._row_bytes = manifest.row_tokens * TOKEN_BYTES
        self._size = min(_WINDOW, max(64, manifest.num_rows))
        self._window: _Window | None = None
        self._index = _BlockIndex.of(manifest)
        self._hashes = RowHashes(folder, manifest)
        self._readers = [shard_reader(folder, manifest, n) for n in range(len(manifest.shards))]
        self._open: dict[int, int] = {}  # descriptors by shard, those opened first in front

    def check(self) -> None:
        """See that all files are there with the right sizes; quick, reads nothing.

        Raises: DataError that names the first one that is not.
        """
        for number, reader in enumerate(self._readers):
            self._make_open({number})
            reader.check_size()
        self._hashes.check()

    def fill(self, step: int, first: int, out: Tokens) -> StepDigest:
        """Fill `out`, shape (n, seq_len + 1), with the samples [first, first + n) of a step.

        Returns the digest of these samples as they were read: what the replicas filled adds up to
        that of `ExpectedDigests`.
        Cost: under 2 us a sample of 4 KB and 20 us a call; a block's first row costs the hashes of
        its rows too, 8 bytes each.
        Raises: DataError that names the file and the block that is missing, damaged or changed.
        """
        positions = batch_positions(step, global_batch=self._global_batch, skips=self._skips)
        if not 0 <= first <= first + len(out) <= self._global_batch:
            raise ValueError(
                f"samples [{first}, {first + len(out)}) of a batch of {self._global_batch}"
            )
        if out.dtype != np.uint16 or out.shape[1:] != (self._manifest.row_tokens,):
            raise ValueError(f"rows of {out.dtype} {out.shape}: {self._manifest.row_tokens} uint16")
        digest = StepDigest()
        done, start = 0, positions.start + first
        while done < len(out):
            window = self._window_at(start + done)
            begin = start + done - window.start
            end = min(self._size, begin + min(len(out) - done, _MAX_ROWS))
            read = slice(begin, end)
            found = self._read(window, read, out[done : done + end - begin])
            digest += StepDigest.of(window.keys[read], found)
            done += end - begin
        return digest

    def skip(self, skips: Skips) -> None:
        """From the next step on these are left out."""
        self._skips = skips

    def close(self) -> None:
        while self._open:
            self._close_one(next(iter(self._open)))

    def _read(self, window: "_Window", read: slice, out_RT: Tokens) -> Words:
        """The hashes of the rows as they were read, which are those that were built."""
        shards, size = window.shards[read], self._row_bytes
        self._make_open(set(shards))
        view = out_RT.data.cast("B")
        pieces = [view[start : start + size] for start in range(0, len(view), size)]
        descriptors = map(self._open.__getitem__, shards)
        # Each buffer of preadv is a list of its own: zip makes tuples of one without a line for it.
        sizes = list(map(os.preadv, descriptors, zip(pieces, strict=True), window.offsets[read]))
        found = np.fromiter(map(xxhash.xxh3_64_intdigest, pieces), np.uint64, len(pieces))
        expected = self._hashes.of(window.blocks[read], window.rows[read])
        if sizes.count(size) < len(sizes) or found.tobytes() != expected.tobytes():
            self._refuse(window, read, found, (found != expected) | (np.array(sizes) != size))
        if out_RT.max() >= self._manifest.vocab_size:
            self._refuse_tokens(window, read, out_RT)
        return found

    def _refuse(self, window: "_Window", read: slice, found: Words, wrong: Flags) -> None:
        """Name the first block whose row is not what was built. Raises: DataError."""
        nth = int(wrong.argmax())
        block, row = int(window.blocks[read][nth]), int(window.rows[read][nth])
        reader = self._readers[int(self._index.shards[block])]
        reader.refuse_row(int(self._index.numbers[block]), row, int(found[nth]))

    def _refuse_tokens(self, window: "_Window", read: slice, out_RT: Tokens) -> None:
        nth = int(out_RT.max(axis=1).argmax())
        block = int(window.blocks[read][nth])
        reader = self._readers[int(self._index.shards[block])]
        reader.check_tokens(int(self._index.numbers[block]), out_RT[nth])

    def _make_open(self, shards: set[int]) -> None:
        """Open these shards, and close others that were opened long ago where they are too many."""
        absent = shards - self._open.keys()
        for number in sorted(absent):
            if len(self._open) == _MAX_OPEN_SHARDS:
                self._close_one(next(old for old in self._open if old not in shards))
            self._readers[number].open()
            self._open[number] = self._readers[number].descriptor

    def _close_one(self, number: int) -> None:
        del self._open[number]
        self._readers[number].close()

    def _window_at(self, position: int) -> "_Window":
        start = position - position % self._size
        if self._window is None or self._window.start != start:
            rows = rows_of(
                start, start + self._size, num_rows=self._manifest.num_rows, seed=self._seed
            )
            self._window = self._index.window(start, rows, self._row_bytes)
        return self._window


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Of the samples at a range of positions: the keys of their hashes, and where they stand.

    A row stands in a block, counted over all shards, and begins at an offset in its shard.
    """

    start: int
    keys: Words
    blocks: Rows
    rows: Rows
    shards: list[int]
    offsets: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockIndex:
    """For each block of a dataset its first row, its shard, its number and its tokens' offset."""

    first_rows: Rows
    shards: Rows
    numbers: Rows
    offsets: Rows

    @staticmethod
    def of(manifest: Manifest) -> "_BlockIndex":
        blocks = [
            (block.rows, shard_number, number, block.tokens_at)
            for shard_number, shard in enumerate(manifest.shards)
            for number, block in enumerate(shard.blocks)
        ]
        rows, shards, numbers, offsets = np.array(blocks, np.int64).T
        first_rows = rows.cumsum() - rows
        return _BlockIndex(first_rows=first_rows, shards=shards, numbers=numbers, offsets=offsets)

    def window(self, start: int, rows: Rows, row_bytes: int) -> _Window:
        """Of the samples from position `start` on, whose rows these are."""
        blocks = self.first_rows.searchsorted(rows, side="right") - 1
        places = rows - self.first_rows[blocks]
        return _Window(
            start=start,
            keys=sample_keys(start, rows),
            blocks=blocks,
            rows=places,
            shards=self.shards[blocks].tolist(),
            offsets=(self.offsets[blocks] + places * row_bytes).tolist(),
        )


def shard_reader(folder: Path, manifest: Manifest, number: int) -> ShardReader:
    shard = manifest.shards[number]
    return ShardReader(
        path=folder / shard.file,
        shard=shard,
        row_tokens=manifest.row_tokens,
        vocab_size=manifest.vocab_size,
        cure=manifest.cure(folder),
    )
