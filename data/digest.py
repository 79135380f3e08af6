"""A sum over (position, row, tokens) that shows whether a step consumed exactly its own samples.

A sample's hash is the product of its key and of the xxh3 of the row as it was read. The key is
mix64(mix64(position + 0x9E3779B97F4A7C15) ^ row) with the lowest bit set, by the mix64 of the
order. All wraps at 2^64; published vectors stand in a test. The digest adds the hashes, so ranks
add up their parts in any cut and order, and a lost, repeated, exchanged or changed sample changes
the sum: as the keys are odd, a single change always does. The upper and lower 32 bits are added
apart: up to 2^31 samples a step fit into int64, which a plain all-reduce can carry.

What the sum has to be follows from the order and from the hashes of the rows that were built: no
data is read for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remesh.data.cursor import batch_positions
from remesh.data.order import Rows, Words, mix64, rows_of
from remesh.data.skips import Skips

_OFFSET = np.uint64(0x9E3779B97F4A7C15)  # moves (0, 0) away from the fixed point of mix64
_ODD = np.uint64(1)
_WINDOW = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDigest:
    """Sum of the upper and of the lower 32 bits of the sample hashes, and how many there are."""

    high: int = 0
    low: int = 0
    count: int = 0

    @staticmethod
    def of(keys: Words, row_hashes: Words) -> "StepDigest":
        """That of samples with these keys, whose rows have these hashes."""
        low, high = np.add.reduce(_halves(keys * row_hashes), axis=0, dtype=np.uint64).tolist()
        return StepDigest(high=high, low=low, count=len(keys))

    def __add__(self, other: "StepDigest") -> "StepDigest":
        return StepDigest(
            high=self.high + other.high, low=self.low + other.low, count=self.count + other.count
        )

    def hex(self) -> str:
        """The digest as 40 hexadecimal digits: high, low, count."""
        return f"{self.high:016x}{self.low:016x}{self.count:08x}"


def _halves(words: Words) -> npt.NDArray[np.uint32]:
    """The lower and the upper 32 bits of each word."""
    return words.astype("<u8", copy=False).view("<u4").reshape(-1, 2)


def sample_keys(first_position: int, rows: Rows) -> Words:
    """The keys of the samples at consecutive positions, from their rows."""
    positions = np.arange(first_position, first_position + len(rows), dtype=np.uint64)
    return mix64(mix64(positions + _OFFSET) ^ rows.astype(np.uint64)) | _ODD


class DigestSums:
    """The digest of any range of some consecutive samples, by two differences of sums."""

    def __init__(self, keys: Words, row_hashes: Words) -> None:
        halves = _halves(keys * row_hashes)
        self._sums = np.zeros((len(keys) + 1, 2), np.uint64)
        np.cumsum(halves, axis=0, out=self._sums[1:])

    def between(self, begin: int, end: int) -> StepDigest:
        low, high = (self._sums[end] - self._sums[begin]).tolist()
        return StepDigest(high=high, low=low, count=end - begin)


class ExpectedDigests:
    """What the digests of all ranks must add up to at a step, without reading any data.

    `hashes_of` gives the hashes of rows by their numbers. Steps are computed a window of positions
    at a time: numpy's cost a call is that of some hundred samples.
    """

    def __init__(
        self, *, global_batch: int, num_rows: int, seed: int, hashes_of: Callable[[Rows], Words]
    ) -> None:
        self._global_batch = global_batch
        self._num_rows = num_rows
        self._seed = seed
        self._hashes_of = hashes_of
        self._start = 0
        self._sums: DigestSums | None = None

    def of(self, step: int, skips: Skips) -> StepDigest:
        """Cost: about 0.5 us a sample if steps are asked for in their order."""
        positions = batch_positions(step, global_batch=self._global_batch, skips=skips)
        digest, done = StepDigest(), positions.start
        while done < positions.stop:
            sums = self._sums_at(done)
            begin = done - self._start
            end = min(_WINDOW, positions.stop - self._start)
            digest += sums.between(begin, end)
            done += end - begin
        return digest

    def _sums_at(self, position: int) -> DigestSums:
        start = position - position % _WINDOW
        if self._sums is None or start != self._start:
            rows = rows_of(start, start + _WINDOW, num_rows=self._num_rows, seed=self._seed)
            self._sums = DigestSums(sample_keys(start, rows), self._hashes_of(rows))
            self._start = start
        return self._sums
