"""Context parallelism: each rank has some of a row's tokens, and keys and values go round.

Only attention looks from one token at others. All else is computed of a rank's own tokens, as if
they were the whole row; their positions and targets are picked here, where tokens come in and where
the loss is taken, and every rank reads the same rows.

A row is cut into 2n runs for n ranks, of which rank r has runs r and 2n - 1 - r. In causal order an
early run sees little and a late one much, so that each rank has as much to do as any other, with
the keys of each rank: of those of a lower one all of its queries see the first run, of those of a
higher one its second run sees both; none of these blocks needs a mask but for segments.

Each rank begins with its own keys and values. Meanwhile those of the rank before arrive, and its
own ones go to the rank behind, n - 1 times. Results of blocks are joined by their log-sum-exp.
Backward sends keys and values round again, and behind them their gradients, to which each rank adds
its part; the last hop takes them home. So a rank sends three times n - 1 pairs of its own size.

To gather all keys and values at once was the alternative: it sends as much, and while attention is
computed there is room for those of all ranks.

Shapes: B sequences, T tokens of a row, t those of this rank, H query heads, K kv heads, D head
width, C width, V vocabulary, E experts, M rows of tokens, sorted by expert.
Source: Liu et al. 2023 (arXiv:2310.01889), 3, the ring; Brandon et al. 2023 (arXiv:2311.09431) and
Grattafiori et al. 2024 (arXiv:2407.21783), 3.3.2, the runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from remesh.parallel.groups.group import PendingOperation
from remesh.parallel.groups.pipes import Ring, exchange
from remesh.parallel.model.attention_core import attended_block, block_gradients, same_segment
from remesh.parallel.model.dispatch import Dispatched, capacity_of, within_capacity
from remesh.parallel.model.maths import Around, Losses, Maths
from remesh.parallel.model.router import loads
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.model_config import ModelConfig


class ContextParallel(Around):
    """The `Maths` of a rank that has its runs of each row; `maths` computes what is its own."""

    def __init__(self, maths: Maths, ring: Ring) -> None:
        super().__init__(maths)
        self._ring = ring

    def dispatch(self, x_BtC: Tensor, chosen_BtK: Tensor, config: ModelConfig) -> Dispatched:
        """Experts are full by the tokens of whole rows, in their order."""
        capacity = capacity_of(config, chosen_BtK.shape[1] * self._ring.size)
        if capacity is not None:
            chosen_BtK = self._within_capacity(chosen_BtK, config.num_experts, capacity)
        return self._maths.dispatch(x_BtC, chosen_BtK, replace(config, capacity_factor=0.0))

    def over_sequence(self, counts_BE: Tensor) -> Tensor:
        passed = self._ring.passed(self._maths.over_sequence(counts_BE))
        return torch.stack([counts.clone() for _, counts in passed]).sum(0)

    def embed(self, tokens_BT: Tensor, weight_VC: Tensor, positions_TC: Tensor | None) -> Tensor:
        """From all tokens of the rows. Raises: LayoutError if they cannot be dealt to the ranks."""
        num_tokens = tokens_BT.shape[1]
        if positions_TC is not None:
            positions_TC = self._own(positions_TC, num_tokens, dim=-2)
        return self._maths.embed(self._own(tokens_BT, num_tokens, dim=1), weight_VC, positions_TC)

    def placed(self, table_TD: Tensor, num_tokens: int) -> Tensor:
        return self._own(table_TD, num_tokens * self._ring.size, dim=0)

    def attend(
        self, q_BHtD: Tensor, k_BKtD: Tensor, v_BKtD: Tensor, segments_BT: Tensor | None
    ) -> Tensor:
        """The segments are those of whole rows."""
        out_BHtD: Tensor = _RingAttention.apply(self._ring, segments_BT, q_BHtD, k_BKtD, v_BKtD)  # type: ignore[no-untyped-call]
        return out_BHtD

    def loss(self, logits_BtV: Tensor, targets_BT: Tensor, z_loss: float) -> Losses:
        """That of this rank's tokens, from all targets of the rows."""
        targets_Bt = self._own(targets_BT, targets_BT.shape[1], dim=1)
        return self._maths.loss(logits_BtV, targets_Bt, z_loss)

    def _within_capacity(self, chosen_BtK: Tensor, num_experts: int, capacity: int) -> Tensor:
        """First come those of the runs before each of this rank's."""
        own = chosen_BtK.chunk(2, 1)
        counts_2BE = torch.stack([loads(run_BsK, num_experts) for run_BsK in own])
        counts_of = {
            number: counts_BE
            for other, passed_2BE in self._ring.passed(counts_2BE)
            for number, counts_BE in zip(self._numbers(other), passed_2BE.clone(), strict=True)
        }
        taken = (
            within_capacity(run_BsK, num_experts, capacity, self._before(number, counts_of))
            for number, run_BsK in zip(self._numbers(self._ring.rank), own, strict=True)
        )
        return torch.cat(list(taken), 1)

    def _numbers(self, rank: int) -> tuple[int, int]:
        """Which runs of a row this rank has."""
        return rank, 2 * self._ring.size - 1 - rank

    @staticmethod
    def _before(number: int, counts_of: Mapping[int, Tensor]) -> Tensor | None:
        """What the runs before it have chosen, None before the first one."""
        before = [counts for other, counts in counts_of.items() if other < number]
        return torch.stack(before).sum(0) if before else None

    def _own(self, whole: Tensor, num_tokens: int, dim: int) -> Tensor:
        """The two runs of this rank of the first `num_tokens`."""
        own = _runs(num_tokens, self._ring.rank, self._ring.size)
        return torch.cat([whole.narrow(dim, run.start, len(run)) for run in own], dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """Which of a rank's own queries see which of the keys of one rank, and how."""

    queries: slice
    keys: slice
    causal: bool
    seen_BQT: Tensor | None  # noqa: N815 - a shape


class _Sight:
    """What this rank's queries see of the keys of each rank."""

    def __init__(self, ring: Ring, num_own: int, segments_BT: Tensor | None) -> None:
        self._ring = ring
        self._half = num_own // 2
        self._segments_BT = segments_BT

    def of(self, other: int) -> _Meeting:
        every, rank = slice(None), self._ring.rank
        queries = slice(self._half, None) if other > rank else every
        keys = slice(self._half) if other < rank else every
        causal = other == rank
        if self._segments_BT is None:
            return _Meeting(queries=queries, keys=keys, causal=causal, seen_BQT=None)
        own_BQ, others_BT = self._segments_of(rank)[:, queries], self._segments_of(other)[:, keys]
        seen_BQT = same_segment(own_BQ, others_BT)
        seen_BQT = seen_BQT.tril() if causal else seen_BQT
        return _Meeting(queries=queries, keys=keys, causal=False, seen_BQT=seen_BQT)

    def _segments_of(self, rank: int) -> Tensor:
        assert self._segments_BT is not None
        runs = _runs(self._segments_BT.shape[1], rank, self._ring.size)
        return torch.cat([self._segments_BT[:, run.start : run.stop] for run in runs], 1)


class _RingAttention(Function):
    @staticmethod
    def forward(
        ctx: Any,
        ring: Ring,
        segments_BT: Tensor | None,
        q_BHtD: Tensor,
        k_BKtD: Tensor,
        v_BKtD: Tensor,
    ) -> Tensor:
        sight = _Sight(ring, q_BHtD.shape[2], segments_BT)
        found: _Joined | None = None
        for other, (k, v) in ring.passed(torch.stack((k_BKtD, v_BKtD))):
            meeting = sight.of(other)
            own = meeting.queries
            block = attended_block(
                q_BHtD[:, :, own],
                k[:, :, meeting.keys],
                v[:, :, meeting.keys],
                meeting.seen_BQT,
                causal=meeting.causal,
            )
            if found is None:
                found = _Joined(*block)
            else:
                found.take(own, *block)
        assert found is not None
        out_BHtD = found.out_BHtD.to(q_BHtD.dtype)
        ctx.ring, ctx.sight = ring, sight
        ctx.save_for_backward(q_BHtD, k_BKtD, v_BKtD, out_BHtD, found.lse_BHt)
        return out_BHtD

    @staticmethod
    def backward(ctx: Any, gradient_BHtD: Tensor) -> tuple[Tensor | None, ...]:
        q_BHtD, k_BKtD, v_BKtD, out_BHtD, lse_BHt = ctx.saved_tensors
        of_q = torch.zeros_like(q_BHtD, dtype=_wide_type(q_BHtD))
        of_kv = _HomewardSum(ctx.ring)
        for other, (k, v) in ctx.ring.passed(torch.stack((k_BKtD, v_BKtD))):
            meeting = ctx.sight.of(other)
            own, keys = meeting.queries, meeting.keys
            saved = q_BHtD, k, v, out_BHtD, lse_BHt
            picked = zip(saved, (own, keys, keys, own, own), strict=True)
            of_q_block, of_k_block, of_v_block = block_gradients(
                gradient_BHtD[:, :, own],
                tuple(tensor[:, :, part] for tensor, part in picked),
                meeting.seen_BQT,
                causal=meeting.causal,
            )
            of_q[:, :, own] += of_q_block
            of_kv.take(keys, of_k_block, of_v_block)
        dtype = q_BHtD.dtype
        of_k, of_v = of_kv.finish()
        return None, None, of_q.to(dtype), of_k.to(dtype), of_v.to(dtype)


class _Joined:
    """The attention of all blocks of keys so far."""

    def __init__(self, out_BHtD: Tensor, lse_BHt: Tensor) -> None:
        self.out_BHtD = _wide(out_BHtD)
        self.lse_BHt = lse_BHt

    def take(self, own: slice, out_BHQD: Tensor, lse_BHQ: Tensor) -> None:
        """A block that the queries `own` have seen: of its share of the softmax it is a mean."""
        before_BHQ = self.lse_BHt[:, :, own]
        share_BHQ = (lse_BHQ - before_BHQ).sigmoid()
        joined_BHQD = self.out_BHtD[:, :, own]
        joined_BHQD.lerp_(out_BHQD.to(joined_BHQD.dtype), share_BHQ[..., None].to(joined_BHQD))
        before_BHQ -= (before_BHQ - lse_BHQ).sigmoid().log()


class _HomewardSum:
    """Gradients of keys and values, which follow these round and are added to on the way.

    Those of this rank's own are kept; the others' are sent on to the next rank, which is where they
    belong after the last one.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._own: Tensor | None = None
        self._sent: Tensor | None = None
        self._arriving: Tensor | None = None
        self._operations: list[PendingOperation] = []

    def take(self, keys: slice, of_k: Tensor, of_v: Tensor) -> None:
        """What this rank adds to those that pass next, of some keys, of its own ones first.

        Raises: Cancelled, GroupError.
        """
        if self._own is None:
            self._own = _wide(torch.stack((of_k, of_v)))
            return
        passing = self._arrived()
        if passing is None:
            passing = torch.zeros_like(self._own)
        passing[0][:, :, keys] += of_k
        passing[1][:, :, keys] += of_v
        self._arriving = torch.empty_like(self._own) if self._sent is None else self._sent
        self._sent, pipe = passing, self._ring.pipe
        assert pipe
        self._operations = exchange([(pipe, passing)], [(pipe, self._arriving)])

    def finish(self) -> Tensor:
        """The sum of what all ranks add to this one's. Raises: Cancelled, GroupError."""
        others = self._arrived()
        assert self._own is not None
        return self._own if others is None else self._own.add_(others)

    def _arrived(self) -> Tensor | None:
        for operation in self._operations:
            operation.wait()
        return self._arriving


def _runs(num_tokens: int, rank: int, size: int) -> tuple[range, range]:
    """Those of a row that this rank has."""
    if num_tokens % (2 * size):
        raise LayoutError(
            f"{num_tokens} tokens cannot be dealt to {size} ranks in two runs each; use a multiple "
            f"of {2 * size}"
        )
    length = num_tokens // (2 * size)
    early, late = rank * length, (2 * size - 1 - rank) * length
    return range(early, early + length), range(late, late + length)


def _wide_type(like: Tensor) -> torch.dtype:
    """To add up in: fp32 for narrower types."""
    return torch.promote_types(like.dtype, torch.float32)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(_wide_type(tensor))
