"""Which part of each parameter a rank of a tensor group holds, in plain integers.

A share is a box of the full tensor: whole heads of the attention, a slice of the feed-forward
width, a run of vocabulary rows. What does not divide is either held by several ranks (a kv head
when there are more ranks than kv heads, norms, row biases) or padded (the vocabulary); all other
sizes have to divide, and the error names the degrees that do.

Who sums a gradient follows from the share alone. Of a tensor that several ranks hold, each rank
has the gradient of its own tokens or its own query heads (`partial`), or all have the same one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's box of a tensor. `holders` are the tp ranks, ascending, that hold the same box.

    `local_shape` is `sizes` with the vocabulary padded to the same number of rows on each rank.
    `partial`: the holders' gradients are parts, to be summed over them; else they are equal.
    """

    offsets: Shape
    sizes: Shape
    local_shape: Shape
    holders: tuple[int, ...]
    partial: bool


def tensor_shares(
    config: ModelConfig, tp: int, tp_rank: int, *, sequence: bool
) -> dict[str, Share]:
    """The share of every parameter, in the model's order. `sequence`: norms work on 1/tp of T.

    Raises: LayoutError if a size does not divide, with the degrees that would work.
    """
    problems = share_problems(config, tp, sequence=sequence)
    if problems:
        raise LayoutError("; ".join(problems))
    if not 0 <= tp_rank < tp:
        raise LayoutError(f"rank {tp_rank} is not one of the {tp} ranks of a tensor group")
    cut = _Cut(config=config, tp=tp, tp_rank=tp_rank, sequence=sequence)
    return {name: cut.share(name, shape) for name, shape in parameter_shapes(config).items()}


def share_problems(config: ModelConfig, tp: int, *, sequence: bool) -> tuple[str, ...]:
    """One sentence for each size that `tp` ranks cannot share, with its cure; empty if all fit."""
    if tp < 1:
        return (f"tp={tp} is no degree; use 1 or more",)
    sizes = {"num_heads": config.num_heads, "ffn_width": config.ffn_width}
    if sequence:
        sizes["seq_len"] = config.seq_len
    found = [
        f"tp={tp} does not divide {name}={size}; use one of {_workable(size, _divides(size))}"
        for name, size in sizes.items()
        if size % tp
    ]
    fits = _shares_heads(config.num_kv_heads)
    if config.num_heads % tp == 0 and not fits(tp):
        found.append(
            f"tp={tp} neither divides num_kv_heads={config.num_kv_heads} nor is a multiple of it; "
            f"use one of {_workable(config.num_heads, fits)}"
        )
    return tuple(found)


def is_cut_by_columns(name: str) -> bool:
    """Whether the ranks of a tensor group hold columns of this tensor and not rows, if not all."""
    return name.endswith((".output.weight", ".down.weight"))


def vocabulary_rows(vocab_size: int, tp: int, tp_rank: int) -> range:
    """Rows of embedding and head on this rank: as many on each, fewer or none on the last ones."""
    num_rows = padded_rows(vocab_size, tp)
    first = min(tp_rank * num_rows, vocab_size)
    return range(first, min(first + num_rows, vocab_size))


def padded_rows(vocab_size: int, tp: int) -> int:
    """Rows of embedding and head that each rank has room for."""
    return math.ceil(vocab_size / tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    config: ModelConfig
    tp: int
    tp_rank: int
    sequence: bool

    def share(self, name: str, shape: Shape) -> Share:
        module = name.split(".")[-2]
        match module:
            case "embedding" | "head":
                return self._vocabulary(shape)
            case "query" | "gate" | "up":
                return self._part(shape, dim=0, num_parts=self.tp)
            case "key" | "value":
                return self._part(shape, dim=0, num_parts=min(self.tp, self.config.num_kv_heads))
            case _ if is_cut_by_columns(name):
                return self._part(shape, dim=1, num_parts=self.tp)
            case "query_norm" | "key_norm":
                return self._whole(shape, partial=True)
            case _:
                return self._whole(shape, partial=self.sequence)

    def _part(self, shape: Shape, *, dim: int, num_parts: int) -> Share:
        """One of equal parts along a dimension, each held by as many neighbouring ranks."""
        num_holders = self.tp // num_parts
        part = self.tp_rank // num_holders
        size = shape[dim] // num_parts
        sizes = _replaced(shape, dim, size)
        return Share(
            offsets=_replaced((0,) * len(shape), dim, part * size),
            sizes=sizes,
            local_shape=sizes,
            holders=tuple(range(part * num_holders, (part + 1) * num_holders)),
            partial=num_holders > 1,
        )

    def _vocabulary(self, shape: Shape) -> Share:
        rows = vocabulary_rows(shape[0], self.tp, self.tp_rank)
        return Share(
            offsets=_replaced((0,) * len(shape), 0, rows.start),
            sizes=_replaced(shape, 0, len(rows)),
            local_shape=_replaced(shape, 0, padded_rows(shape[0], self.tp)),
            holders=(self.tp_rank,),
            partial=False,
        )

    def _whole(self, shape: Shape, *, partial: bool) -> Share:
        return Share(
            offsets=(0,) * len(shape),
            sizes=shape,
            local_shape=shape,
            holders=tuple(range(self.tp)),
            partial=partial and self.tp > 1,
        )


def _replaced(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _divides(size: int) -> Callable[[int], bool]:
    return lambda tp: size % tp == 0


def _shares_heads(num_kv_heads: int) -> Callable[[int], bool]:
    return lambda tp: num_kv_heads % tp == 0 or tp % num_kv_heads == 0


def _workable(most: int, fits: Callable[[int], bool]) -> str:
    """The degrees up to `most` that divide it and fit."""
    return ", ".join(str(tp) for tp in range(1, most + 1) if most % tp == 0 and fits(tp))
