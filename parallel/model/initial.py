"""Initial parameters, drawn from a hash of (seed, name) in blocks of rows.

A value depends on nothing else: not on the layout, nor on the order in which parameters are made,
nor on who draws it. So every rank draws the blocks that it holds something of, no broadcast is
needed, and nobody has a large tensor whole. One generator over the whole model would be shorter,
but then a rank that holds the last layer would have to draw all layers before it.
"""

import hashlib
import math
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.state.fragments import Fragment, whole

BLOCK_ELEMENTS = 2**20  # a tensor that is not larger is one block

_STD = 0.02


def draw(seed: int, name: str, shape: tuple[int, ...], *, std: float = _STD) -> Tensor:
    """A whole fp32 tensor of normal values with mean 0, the same whoever draws it."""
    drawn = torch.empty(shape)
    _DrawnBlocks(seed).fill(drawn, whole(name, shape, "float32"), std)
    return drawn


def initial_value(config: ModelConfig, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """The parameter `name` at step 0, whole."""
    value = torch.empty(shape)
    InitialValues(config, seed).fill(value, whole(name, shape, "float32"))
    return value


class InitialValues:
    """Every parameter at step 0: norms 1, biases 0, residual projections smaller.

    Source: Radford et al. 2019 (GPT-2), 2.3: residual projections scaled by 1 / sqrt(2 * layers).
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._small = _STD / math.sqrt(2 * config.num_layers)
        self._blocks = _DrawnBlocks(seed)

    def fill(self, out: Tensor, box: Fragment) -> None:
        """Cost: the blocks that the box lies in are drawn, of about a million elements each."""
        if box.name.endswith("norm.weight"):
            out.fill_(1.0)
        elif box.name.endswith(".bias"):
            out.zero_()
        else:
            outward = box.name.endswith(("attention.output.weight", ".down.weight"))
            self._blocks.fill(out, box, self._small if outward else _STD)


class _DrawnBlocks:
    """Of as many whole rows as there is room for, each drawn from a key of its own.

    A row is what lies along the last dimension.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._last = ("", -1), torch.empty(0)

    def fill(self, out: Tensor, box: Fragment, std: float) -> None:
        *leading, width = box.global_shape
        height, num_rows = max(1, BLOCK_ELEMENTS // width), math.prod(leading)
        columns = slice(box.offsets[-1], box.offsets[-1] + box.sizes[-1])
        for start, rows in _runs(out, box):
            stop = start + len(rows)
            for low in range(start - start % height, stop, height):
                shape = (min(height, num_rows - low), width)
                block = self._drawn((box.name, low // height), shape, std)
                first, last = max(start, low), min(stop, low + height)
                rows[first - start : last - start] = block[first - low : last - low, columns]

    def _drawn(self, which: tuple[str, int], shape: tuple[int, int], std: float) -> Tensor:
        if self._last[0] != which:  # several boxes may lie in one block
            generator = torch.Generator().manual_seed(_key(self._seed, *which))
            self._last = which, torch.empty(shape).normal_(0.0, std, generator=generator)
        return self._last[1]


def _runs(out: Tensor, box: Fragment) -> Iterator[tuple[int, Tensor]]:
    """Rows of a box that follow one another in the whole tensor, and the number of the first."""
    if len(box.sizes) == 1:
        yield 0, out.view(1, -1)
        return
    *outer, height, _ = box.global_shape
    spans = zip(box.offsets[:-2], box.sizes[:-2], strict=True)
    places = product(*(range(start, start + size) for start, size in spans))
    for place, rows in zip(places, out.reshape(-1, *box.sizes[-2:]), strict=True):
        number = 0
        for index, extent in zip(place, outer, strict=True):
            number = number * extent + index
        yield number * height + box.offsets[-2], rows


def _key(seed: int, name: str, block: int) -> int:
    """A tensor of one block has the key that it had before there were blocks."""
    told = f"{seed}/parameter/{name}" + (f"/{block}" if block else "")
    digest = hashlib.sha256(told.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
