"""The gradient's norm as an exact sum: the same bits however the gradient is cut and added up.

Squares of a chunk of 64 elements are added in a fixed order, in one pass over a gradient in fp32
and in fp64 where all squares are too large or too small for that; chunk sums are scaled by a power
of two, rounded to integers and added as int64, which no order of additions can change. The scale
comes from the largest chunk sum, so that the sum fits and loses next to nothing: from its cell, of
16 binades, so that it is that of the step before nearly always, and ranks that scale by it need no
message more to agree. A plain fp64 sum would differ in the last bit between cuts, and clipping
would carry that to all.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from remesh.parallel.plan.pieces import CHUNK

_ROWS = 2048  # chunks at a time: their squares stay in the processor's cache
_BINADES = 16  # of a cell
_LEAST_CELL, _MOST_CELL = -4, 7  # 2^-80 to 2^112: fp32 ends at 2^-149 and 2^128
NO_CELL, NOT_FINITE = -(1 << 20), 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareSum:
    """A sum of squares: `units` of 2^-exponent, or one that is not `finite`."""

    units: int
    exponent: int
    finite: bool = True

    @property
    def root(self) -> float:
        """Its square root; inf if it is not finite."""
        if not self.finite:
            return math.inf
        if self.exponent < 0:
            return math.sqrt(self.units * 2**-self.exponent)
        return math.sqrt(self.units / 2**self.exponent)


def square_sum(units: int, cell: int, num_chunks: int) -> SquareSum:
    """Of `units` of all ranks, in which `num_chunks` sums up to those of this cell add up."""
    if cell in (NOT_FINITE, NO_CELL):
        return SquareSum(units=0, exponent=0, finite=cell == NO_CELL)
    return SquareSum(units=units, exponent=scale_exponent(cell, num_chunks))


def cell_of(sums: Tensor) -> int:
    """That of the largest chunk sum: NO_CELL if all are 0, NOT_FINITE if one is not finite."""
    largest = float(sums.max()) if len(sums) else 0.0
    if not math.isfinite(largest):
        return NOT_FINITE
    return -(-math.frexp(largest)[1] // _BINADES) if largest > 0 else NO_CELL


def units_of(sums: Tensor, cell: int, num_chunks: int) -> int:
    """Chunk sums added up exactly, none of which is beyond this cell."""
    exponent = scale_exponent(cell, num_chunks)
    return int((sums * 2.0**exponent).round_().to(torch.int64).sum())


def chunk_sums(gradient: Tensor, *, wide: bool = False) -> Tensor:
    """Sums of squares, fp64, of chunks of 64 elements, each as if it were alone.

    Those of a gradient in fp32 are added in fp32, in a third of the time, unless they are to be
    `wide`, as they have to be where the largest of all is not `in_range`.
    """
    chunks = gradient.view(-1, CHUNK)
    if wide or gradient.dtype != torch.float32:
        return _wide_sums(chunks)
    sums: Tensor = torch.linalg.vector_norm(chunks, dim=1).double().square_()
    return sums


def in_range(cell: int) -> bool:
    """Whether fp32 has room for all squares that count beside a chunk sum of this cell."""
    return _LEAST_CELL <= cell <= _MOST_CELL


def scale_exponent(cell: int, num_chunks: int) -> int:
    """The power of two by which `num_chunks` sums of up to this cell still add up in int64."""
    room = 62 - num_chunks.bit_length()
    return min(room - _BINADES * cell, 1000)


def clip_factor(norm: float, limit: float) -> float:
    """What to multiply a gradient by so that its norm is at most `limit`; 0 means no limit."""
    return limit / norm if 0.0 < limit < norm else 1.0


def _wide_sums(chunks: Tensor) -> Tensor:
    """In fp64, whatever the size of the elements."""
    sums = torch.empty(len(chunks), dtype=torch.float64, device=chunks.device)
    squares = torch.empty(min(_ROWS, len(chunks)), CHUNK, dtype=torch.float64, device=chunks.device)
    for start in range(0, len(chunks), _ROWS):
        rows = chunks[start : start + _ROWS]
        torch.sum(squares[: len(rows)].copy_(rows).square_(), 1, out=sums[start : start + _ROWS])
    return sums
