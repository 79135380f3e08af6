"""Samples of any step, filled into the caller's buffer; there is no iterator state to save.

What a step reads follows from its number alone, so a resume, a skip or another number of replicas
costs nothing and moves nothing. The order is computed for a window of positions at a time, because
numpy's cost a call is that of some hundred samples. For the same reason rows are read, hashed and
compared many at a time, without a line of Python for each.
"""

import os
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from remesh.data.blocks import TOKEN_BYTES, ShardReader, Tokens
from remesh.data.cursor import batch_positions
from remesh.data.digest import StepDigest
from remesh.data.manifest import Manifest
from remesh.data.order import Words, rows_of
from remesh.data.row_hashes import RowHashes
from remesh.data.skips import Skips
from remesh.data.windows import BlockIndex, Window

Flags = npt.NDArray[np.bool_]

_TOKEN = np.dtype(np.uint16)
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_WINDOW = 8192
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
        self._row_bytes = size = manifest.row_tokens * TOKEN_BYTES
        self._cuts = [slice(n * size, (n + 1) * size) for n in range(_MAX_ROWS)]
        self._size = min(_WINDOW, max(64, manifest.num_rows))
        self._window: Window | None = None
        self._index = BlockIndex.of(manifest, size)
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
        if out.dtype != _TOKEN or out.shape != (len(out), self._manifest.row_tokens):
            raise ValueError(f"rows of {out.dtype} {out.shape}: {self._manifest.row_tokens} uint16")
        parts: list[StepDigest] = []
        done, start = 0, positions.start + first
        while done < len(out):
            window = self._window_at(start + done)
            begin = start + done - window.start
            end = min(self._size, begin + min(len(out) - done, _MAX_ROWS))
            parts.append(self._read(window, slice(begin, end), out[done : done + end - begin]))
            done += end - begin
        return parts[0] if len(parts) == 1 else sum(parts, StepDigest())

    def fill_at_once(self, step: int, first: int, out: Tokens) -> StepDigest | None:
        """As `fill`, where all is in memory that it needs: no disk is waited for.

        None where it is not, or is not what was built, with anything in `out`.
        """
        window, size = self._window, len(out)
        if window is None or _NO_WAIT is None:
            return None
        batch = batch_positions(step, global_batch=self._global_batch, skips=self._skips)
        start = batch.start + first
        read = slice(start - window.start, start - window.start + size)
        if not 0 <= read.start <= read.stop <= self._size or size > _MAX_ROWS:
            return None
        proofs, blocks = window.proofs, window.blocks[read]
        known = (
            self._hashes.kept(blocks, window.rows[read]) if proofs is None else proofs.hashes[read]
        )
        if known is None or not self._open.keys() >= set(window.shards[read]):
            return None
        try:
            sizes, found = self._rows(window, read, out, _NO_WAIT)
        except OSError:  # not in memory, or there is no such question here
            return None
        if not self._are_built(sizes, found, known) or self._are_unknown(out):
            return None
        return _digest(window, read, found)

    def skip(self, skips: Skips) -> None:
        """From the next step on these are left out."""
        self._skips = skips

    def close(self) -> None:
        while self._open:
            self._close_one(next(iter(self._open)))

    def _read(self, window: Window, read: slice, out_RT: Tokens) -> StepDigest:
        """That of the rows as they were read, which are those that were built."""
        shards, size = window.shards[read], self._row_bytes
        if len(self._open) < len(self._readers):
            self._make_open(set(shards))
        sizes, found = self._rows(window, read, out_RT)
        proofs = window.proofs
        known = (
            self._hashes.of(window.blocks[read], window.rows[read])
            if proofs is None
            else proofs.hashes[read]
        )
        if not self._are_built(sizes, found, known):
            self._refuse(window, read, found, (found != known) | (np.array(sizes) != size))
        if self._are_unknown(out_RT):
            self._refuse_tokens(window, read, out_RT)
        return _digest(window, read, found)

    def _rows(
        self, window: Window, read: slice, out_RT: Tokens, flags: int = 0
    ) -> tuple[list[int], Words]:
        """How many bytes of each were read, and their hashes."""
        view = out_RT.data.cast("B")
        pieces = list(map(view.__getitem__, self._cuts[: len(out_RT)]))
        descriptors = map(self._open.__getitem__, window.shards[read])
        # Each buffer of preadv is a list of its own: zip makes tuples of one without a line for it.
        buffers = zip(pieces, strict=True)
        read_at = window.offsets[read]
        sizes = list(map(os.preadv, descriptors, buffers, read_at, repeat(flags)))
        return sizes, np.fromiter(map(xxhash.xxh3_64_intdigest, pieces), np.uint64, len(pieces))

    def _are_built(self, sizes: list[int], found: Words, known: Words) -> bool:
        """Whether rows are whole and have the hashes that are known of them."""
        return sizes.count(self._row_bytes) == len(sizes) and found.tobytes() == known.tobytes()

    def _are_unknown(self, out_RT: Tokens) -> bool:
        """Whether there are tokens that the vocabulary has not."""
        return bool(np.maximum.reduce(out_RT, axis=None) >= self._manifest.vocab_size)

    def _refuse(self, window: Window, read: slice, found: Words, wrong: Flags) -> None:
        """Name the first block whose row is not what was built. Raises: DataError."""
        nth = int(wrong.argmax())
        block, row = int(window.blocks[read][nth]), int(window.rows[read][nth])
        reader = self._readers[int(self._index.shards[block])]
        reader.refuse_row(int(self._index.numbers[block]), row, int(found[nth]))

    def _refuse_tokens(self, window: Window, read: slice, out_RT: Tokens) -> None:
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

    def _window_at(self, position: int) -> Window:
        start = position - position % self._size
        if self._window is None or self._window.start != start:
            rows = rows_of(
                start, start + self._size, num_rows=self._manifest.num_rows, seed=self._seed
            )
            self._window = self._index.window(start, rows, self._hashes)
        return self._window


def _digest(window: Window, read: slice, found: Words) -> StepDigest:
    """Of rows with these hashes, which are those that were built."""
    if window.proofs is None:
        return StepDigest.of(window.keys[read], found)
    return window.proofs.sums.between(read.start, read.stop)


def shard_reader(folder: Path, manifest: Manifest, number: int) -> ShardReader:
    shard = manifest.shards[number]
    return ShardReader(
        path=folder / shard.file,
        shard=shard,
        row_tokens=manifest.row_tokens,
        vocab_size=manifest.vocab_size,
        cure=manifest.cure(folder),
    )
