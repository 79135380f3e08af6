"""Samples of any step, filled into the caller's buffer; there is no iterator state to save.

What a step reads follows from its number alone, so a resume, a skip or another number of replicas
costs nothing and moves nothing. The order is computed for a window of positions at a time, because
numpy's cost a call is that of some hundred samples.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remesh.data.blocks import ShardReader, Tokens
from remesh.data.cursor import batch_positions
from remesh.data.digest import SampleDigests, StepDigest
from remesh.data.manifest import Manifest
from remesh.data.order import Rows, rows_of
from remesh.data.skips import Skips

_WINDOW = 4096
_MAX_OPEN_SHARDS = 256

BlockPlace = tuple[int, int, int]  # shard, block in the shard, row in the block


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
        self._size = min(_WINDOW, max(64, manifest.num_rows))
        self._window: _Window | None = None
        self._index = _BlockIndex.of(manifest)
        self._readers: dict[int, ShardReader] = {}
        self._open: list[ShardReader] = []

    def check(self) -> None:
        """See that all shards are there with the right sizes; quick, reads nothing.

        Raises: DataError that names the first shard that is not.
        """
        for number in range(len(self._manifest.shards)):
            self._reader(number).notice_changes()

    def fill(self, step: int, first: int, out: Tokens) -> StepDigest:
        """Fill `out`, shape (n, seq_len + 1), with the samples [first, first + n) of a step.

        Returns the digest of these samples: what the replicas filled adds up to `expected_digest`.
        Cost: about 3 us a sample and 3 us a call; a block is read whole at its first touch.
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
            end = min(len(window.places), begin + len(out) - done)
            self._read(window.places[begin:end], out[done:])
            digest += window.digests.between(begin, end)
            done += end - begin
        return digest

    def skip(self, skips: Skips) -> None:
        """From the next step on these are left out."""
        self._skips = skips

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def _read(self, places: list[BlockPlace], out: Tokens) -> None:
        for number in {shard for shard, _, _ in places}:
            self._reader(number).notice_changes()
        for (shard, block, row), tokens in zip(places, out, strict=False):
            self._reader(shard).read_row(block, row, tokens)

    def _reader(self, number: int) -> ShardReader:
        reader = self._readers.get(number)
        if reader is not None and reader.is_open:
            return reader
        if reader is None:
            reader = self._readers[number] = shard_reader(self._folder, self._manifest, number)
        if len(self._open) == _MAX_OPEN_SHARDS:
            self._open.pop(0).close()
        reader.open()
        self._open.append(reader)
        return reader

    def _window_at(self, position: int) -> "_Window":
        start = position - position % self._size
        if self._window is None or self._window.start != start:
            rows = rows_of(
                start, start + self._size, num_rows=self._manifest.num_rows, seed=self._seed
            )
            self._window = _Window(
                start=start,
                digests=SampleDigests.of(start, rows),
                places=self._index.places_of(rows),
            )
        return self._window


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The digests and places of the samples at a range of positions."""

    start: int
    digests: SampleDigests
    places: list[BlockPlace]


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockIndex:
    """For each block of a dataset its first row, its shard and its number in the shard."""

    first_rows: Rows
    shards: Rows
    numbers: Rows

    @staticmethod
    def of(manifest: Manifest) -> "_BlockIndex":
        blocks = [
            (block.rows, shard_number, number)
            for shard_number, shard in enumerate(manifest.shards)
            for number, block in enumerate(shard.blocks)
        ]
        rows, shards, numbers = np.array(blocks, np.int64).T
        return _BlockIndex(first_rows=rows.cumsum() - rows, shards=shards, numbers=numbers)

    def places_of(self, rows: Rows) -> list[BlockPlace]:
        blocks = self.first_rows.searchsorted(rows, side="right") - 1
        places = (self.shards[blocks], self.numbers[blocks], rows - self.first_rows[blocks])
        return list(zip(*(part.tolist() for part in places), strict=True))


def shard_reader(folder: Path, manifest: Manifest, number: int) -> ShardReader:
    shard = manifest.shards[number]
    return ShardReader(
        path=folder / shard.file,
        shard=shard,
        row_tokens=manifest.row_tokens,
        vocab_size=manifest.vocab_size,
        cure=f"build it again with: {manifest.build_command(folder)}",
    )
