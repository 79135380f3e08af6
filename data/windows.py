"""Where the samples at a range of positions stand, computed for a few thousand of them at a time.

What numpy's calls cost is shared by them all, so what can be known of a sample before it is read
is looked up here: its block, its shard and offset, and, once the hashes of its block are there,
what its row has to hash to and what it adds to a step's digest.
"""

from dataclasses import dataclass

import numpy as np

from remesh.data.digest import DigestSums, sample_keys
from remesh.data.manifest import Manifest
from remesh.data.order import Rows, Words
from remesh.data.row_hashes import RowHashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """What the rows of a window have to hash to, and the digests that follow."""

    hashes: Words
    sums: DigestSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Of the samples at a range of positions: the keys of their hashes, and where they stand.

    A row stands in a block, counted over all shards, and begins at an offset in its shard. Without
    proofs, hashes of some of them have still to be read.
    """

    start: int
    keys: Words
    blocks: Rows
    rows: Rows
    shards: list[int]
    offsets: list[int]
    proofs: Proofs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIndex:
    """For each block of a dataset its first row, its shard, its number and its tokens' offset."""

    first_rows: Rows
    shards: Rows
    numbers: Rows
    offsets: Rows
    row_bytes: int

    @staticmethod
    def of(manifest: Manifest, row_bytes: int) -> "BlockIndex":
        blocks = [
            (block.rows, shard_number, number, block.tokens_at)
            for shard_number, shard in enumerate(manifest.shards)
            for number, block in enumerate(shard.blocks)
        ]
        rows, shards, numbers, offsets = np.array(blocks, np.int64).T
        first_rows = rows.cumsum() - rows
        return BlockIndex(
            first_rows=first_rows,
            shards=shards,
            numbers=numbers,
            offsets=offsets,
            row_bytes=row_bytes,
        )

    def window(self, start: int, rows: Rows, hashes: RowHashes) -> Window:
        """Of the samples from position `start` on, whose rows these are."""
        blocks = self.first_rows.searchsorted(rows, side="right") - 1
        places = rows - self.first_rows[blocks]
        keys, known = sample_keys(start, rows), hashes.kept(blocks, places)
        return Window(
            start=start,
            keys=keys,
            blocks=blocks,
            rows=places,
            shards=self.shards[blocks].tolist(),
            offsets=(self.offsets[blocks] + places * self.row_bytes).tolist(),
            proofs=None if known is None else Proofs(hashes=known, sums=DigestSums(keys, known)),
        )
