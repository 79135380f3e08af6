"""A sum over (position, row) that shows whether a step consumed exactly its own samples.

A sample's hash is mix64(mix64(position + 0x9E3779B97F4A7C15) ^ row), with the mix64 of the order
and sums that wrap at 2^64; its published vectors stand in a test. The digest adds the hashes, so
ranks add up their parts in any cut and order, and a lost, repeated or exchanged sample changes the
sum. The upper and lower 32 bits are added apart: up to 2^31 samples a step fit into int64, which a
plain all-reduce can carry.
"""

from dataclasses import dataclass

import numpy as np

from remesh.data.cursor import batch_positions
from remesh.data.order import Rows, Words, mix64, rows_of
from remesh.data.skips import Skips

_OFFSET = np.uint64(0x9E3779B97F4A7C15)  # moves (0, 0) away from the fixed point of mix64


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDigest:
    """Sum of the upper and of the lower 32 bits of the sample hashes, and how many there are."""

    high: int = 0
    low: int = 0
    count: int = 0

    def __add__(self, other: "StepDigest") -> "StepDigest":
        return StepDigest(
            high=self.high + other.high, low=self.low + other.low, count=self.count + other.count
        )

    def hex(self) -> str:
        """The digest as 40 hexadecimal digits: high, low, count."""
        return f"{self.high:016x}{self.low:016x}{self.count:08x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDigests:
    """The digest of any run within some consecutive samples, for the price of four look-ups."""

    highs: list[int]
    lows: list[int]

    @staticmethod
    def of(first_position: int, rows: Rows) -> "SampleDigests":
        """Digests of the samples at consecutive positions, whose rows are given."""
        hashes = np.concatenate(([np.uint64(0)], sample_hashes(first_position, rows)))
        highs, lows = hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)
        return SampleDigests(highs=highs.cumsum().tolist(), lows=lows.cumsum().tolist())

    def between(self, begin: int, end: int) -> StepDigest:
        high = self.highs[end] - self.highs[begin]
        return StepDigest(high=high, low=self.lows[end] - self.lows[begin], count=end - begin)


def expected_digest(
    step: int, *, global_batch: int, num_rows: int, seed: int, skips: Skips
) -> StepDigest:
    """What the digests of all ranks must add up to at a step, without reading any data."""
    positions = batch_positions(step, global_batch=global_batch, skips=skips)
    rows = rows_of(positions.start, positions.stop, num_rows=num_rows, seed=seed)
    return SampleDigests.of(positions.start, rows).between(0, global_batch)


def sample_hashes(first_position: int, rows: Rows) -> Words:
    """A 64-bit hash of (position, row) for each of the rows at consecutive positions."""
    positions = np.arange(first_position, first_position + len(rows), dtype=np.uint64)
    return mix64(mix64(positions + _OFFSET) ^ rows.astype(np.uint64))
