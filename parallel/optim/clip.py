"""The gradient's norm as an exact sum: the same bits however the gradient is cut and added up.

Squares of a chunk of 64 elements are added in fp64 in a fixed order; chunk sums are scaled by a
power of two, rounded to integers and added as int64, which no order of additions can change. The
scale comes from the largest chunk sum, so that the sum fits and loses less than 2^-40 of it. A
plain fp64 sum would differ in the last bit between cuts, and clipping would carry that to all.
"""

import math

import torch
from torch import Tensor

from remesh.parallel.optim.flat import CHUNK


def exact_norm(gradient: Tensor) -> float:
    """The 2-norm of a flat gradient; inf if an element is not finite."""
    sums = chunk_sums(gradient)
    largest = float(sums.max())
    if not math.isfinite(largest):
        return math.inf
    if largest == 0.0:
        return 0.0
    exponent = scale_exponent(largest, len(sums))
    total = int((sums * 2.0**exponent).round_().to(torch.int64).sum())
    return math.sqrt(total / 2**exponent if exponent >= 0 else total * 2**-exponent)


def chunk_sums(gradient: Tensor) -> Tensor:
    """Sums of squares, fp64, of chunks of 64 elements: six rounds of adding the upper half."""
    sums = gradient.view(-1, CHUNK).double().square_()
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


def scale_exponent(largest: float, num_chunks: int) -> int:
    """The largest power of two by which `num_chunks` sums up to `largest` still add up in int64."""
    room = 62 - num_chunks.bit_length()
    return min(room - math.frexp(largest)[1], 1000)


def clip_factor(norm: float, limit: float) -> float:
    """What to multiply a gradient by so that its norm is at most `limit`; 0 means no limit."""
    return limit / norm if 0.0 < limit < norm else 1.0
