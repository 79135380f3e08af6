"""Which part of each parameter a rank of a tensor group holds, in plain integers.

A share is a box of the full tensor: whole heads of the attention, a slice of the feed-forward
width, a run of vocabulary rows. What does not divide is either held by several ranks (a kv head
when there are more ranks than kv heads, norms, row biases) or padded (the vocabulary); all other
sizes have to divide, and the error names the degrees that do.

Who sums a gradient follows from the share alone. Of a tensor that several ranks hold, each rank
has the gradient of its own tokens or its own query heads (`partial`), or all have the same one.
"""

import math
from dataclasses import dataclass, replace

from remesh.parallel.plan.book.verdict import problems
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig, TensorShape, parameter_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's box of a tensor. `holders` are the tp ranks, ascending, that hold the same box.

    `local_shape` is `sizes` with the vocabulary padded to the same number of rows on each rank.
    `partial`: the holders' gradients are parts, to be summed over them; else they are equal.
    """

    offsets: TensorShape
    sizes: TensorShape
    local_shape: TensorShape
    holders: tuple[int, ...]
    partial: bool


def tensor_shares(
    config: ModelConfig, tp: int, tp_rank: int, *, sequence: bool, experts: range | None = None
) -> dict[str, Share]:
    """The share of every parameter, in the model's order. `sequence`: norms work on 1/tp of T.

    Of a stack of experts it is `experts` only, all of them if there is no such range.

    Raises: LayoutError if there is no such rank or a size does not divide, with what would work.
    """
    Layout(tp=tp).coordinate(tp_rank)
    found = tuple(problems(replace(config.asked, tp=tp, sequence=sequence)))
    if found:
        raise LayoutError("; ".join(found))
    slicing = _Slicing(config=config, tp=tp, tp_rank=tp_rank, sequence=sequence)
    shares = {name: slicing.share(name, shape) for name, shape in parameter_shapes(config).items()}
    if experts is None:
        return shares
    return {
        name: of_experts(share, experts) if is_of_experts(name) else share
        for name, share in shares.items()
    }


def of_experts(share: Share, experts: range) -> Share:
    """Of the share of a stack of experts, that of these alone."""
    return replace(
        share,
        offsets=_replaced(share.offsets, 0, experts.start),
        sizes=_replaced(share.sizes, 0, len(experts)),
        local_shape=_replaced(share.local_shape, 0, len(experts)),
    )


def is_of_experts(name: str) -> bool:
    """Whether this parameter, or slot of it, is a stack of maps, one for each expert."""
    return ".ffn.experts." in name


def replicated_heads(tp: int, num_kv_heads: int) -> int:
    """How many ranks of a tp group hold each kv head: above 1 where there are more ranks."""
    return max(1, tp // num_kv_heads)


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
class _Slicing:
    config: ModelConfig
    tp: int
    tp_rank: int
    sequence: bool

    def share(self, name: str, shape: TensorShape) -> Share:
        module = name.split(".")[-2]
        match module:
            case "embedding" | "head":
                return self._vocabulary(shape)
            case "query" | "gate" | "up":  # of a stack of experts, rows of each
                return self._part(shape, dim=max(0, len(shape) - 2), num_parts=self.tp)
            case "key" | "value":
                return self._part(shape, dim=0, num_parts=min(self.tp, self.config.num_kv_heads))
            case _ if is_cut_by_columns(name):
                return self._part(shape, dim=len(shape) - 1, num_parts=self.tp)
            case "query_norm" | "key_norm":
                return self._whole(shape, partial=True)
            case _:
                return self._whole(shape, partial=self.sequence)

    def _part(self, shape: TensorShape, *, dim: int, num_parts: int) -> Share:
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

    def _vocabulary(self, shape: TensorShape) -> Share:
        rows = vocabulary_rows(shape[0], self.tp, self.tp_rank)
        return Share(
            offsets=_replaced((0,) * len(shape), 0, rows.start),
            sizes=_replaced(shape, 0, len(rows)),
            local_shape=_replaced(shape, 0, padded_rows(shape[0], self.tp)),
            holders=(self.tp_rank,),
            partial=False,
        )

    def _whole(self, shape: TensorShape, *, partial: bool) -> Share:
        return Share(
            offsets=(0,) * len(shape),
            sizes=shape,
            local_shape=shape,
            holders=tuple(range(self.tp)),
            partial=partial and self.tp > 1,
        )


def _replaced(shape: TensorShape, dim: int, size: int) -> TensorShape:
    return (*shape[:dim], size, *shape[dim + 1 :])
