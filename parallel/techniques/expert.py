"""Expert parallelism: each rank of a group has some of the experts, and tokens travel to them.

A rank sorts the rows of its tokens by expert, and so by rank: it sends each rank the rows for the
experts there, in one all-to-all, and gets back in another one what they say. Before the first one
the ranks tell each other how many rows come. On arrival rows lie by the rank that they come from,
and are put in the order of the experts; within an expert they keep that of the ranks, so that the
sums over tokens have one order, and the same bits whichever ranks these are.

How many rows come is told and heard at once; while rows are under way another pass of the rank may
compute (taking_turns.py).

A rank with nothing to send, and one whose experts get nothing, takes part as all others do. Experts
add up gradients of the tokens of the whole group: the ranks of one compute at the same time.

The alternative, every expert a buffer of a fixed size, drops tokens or sends room for those that
never come.

Shapes: M rows of this rank's tokens, R rows for its experts, C width, E experts.
Source: Lepikhin et al. 2020 (arXiv:2006.16668), 3.2; Gale et al. 2022 (arXiv:2211.15841).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from remesh.parallel.groups.collectives import start_all_to_all
from remesh.parallel.groups.group import Group
from remesh.parallel.model.dispatch import Dispatched
from remesh.parallel.model.maths import Around, Maths
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.techniques.taking_turns import TakingTurns


class ExpertParallel(Around):
    """The `Maths` of a rank that has some experts; `maths` computes all else, and those it has.

    While rows are under way the other one of two passes has its turn.
    """

    def __init__(self, maths: Maths, group: Group, turns: TakingTurns | None = None) -> None:
        super().__init__(maths)
        self._ways = _Ways(group=group, turns=turns or TakingTurns())

    def dispatch(self, x_BTC: Tensor, chosen_BTK: Tensor, config: ModelConfig) -> Dispatched:
        sent = self._maths.dispatch(x_BTC, chosen_BTK, config)
        routes = _routes(self._ways.group, sent.counts, x_BTC.device)
        rows_RC: Tensor = _ToExperts.apply(self._ways, routes, sent.rows)  # type: ignore[no-untyped-call]
        return replace(sent, rows=rows_RC, counts=routes.counts, routes=routes)

    def combine(self, rows_RC: Tensor, weights_BTK: Tensor, sent: Dispatched) -> Tensor:
        rows_MC: Tensor = _FromExperts.apply(self._ways, sent.routes, rows_RC)  # type: ignore[no-untyped-call]
        return self._maths.combine(rows_MC, weights_BTK, sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Routes:
    """How many rows go to each rank and come from it, and how many each own expert has.

    `order` says which of the arriving rows is the first one in the order of experts, and so on;
    `place` where each of the arriving ones is in that order.
    """

    sent: tuple[int, ...]
    received: tuple[int, ...]
    counts: tuple[int, ...]
    order: Tensor
    place: Tensor


def rows_between(counts: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """How many of a rank's rows go to each rank: `counts` are those of each expert, in order."""
    own = len(counts) // num_ranks
    return tuple(sum(counts[first : first + own]) for first in range(0, len(counts), own))


def _routes(group: Group, counts: Sequence[int], device: torch.device) -> _Routes:
    own = len(counts) // group.size
    told = torch.tensor(counts, device=device)
    found = torch.empty_like(told)
    sizes = [own] * group.size
    start_all_to_all(group, found, told, sizes, sizes).wait()
    found_RE = found.view(group.size, own)  # of the own experts, from each rank
    expert_of_row = torch.arange(own, device=device).repeat(group.size)
    order = expert_of_row.repeat_interleave(found).argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=device)
    return _Routes(
        sent=rows_between(counts, group.size),
        received=tuple(found_RE.sum(1).tolist()),
        counts=tuple(found_RE.sum(0).tolist()),
        order=order,
        place=place,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ways:
    """From this rank to experts on others and back."""

    group: Group
    turns: TakingTurns

    def to_experts(self, routes: _Routes, rows_MC: Tensor) -> Tensor:
        return self._exchanged(rows_MC, routes.sent, routes.received)[routes.order]

    def from_experts(self, routes: _Routes, rows_RC: Tensor) -> Tensor:
        return self._exchanged(rows_RC[routes.place], routes.received, routes.sent)

    def _exchanged(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Raises: Cancelled, GroupError."""
        width = rows.shape[1]
        out = rows.new_empty(sum(received) * width)
        sizes = [count * width for count in sent]
        out_sizes = [count * width for count in received]
        flat = rows.contiguous().view(-1)
        self.turns.wait_for(start_all_to_all(self.group, out, flat, out_sizes, sizes))
        return out.view(-1, width)


class _ToExperts(Function):
    """To the experts, and gradients of what came there back."""

    @staticmethod
    def forward(ctx: Any, ways: _Ways, routes: _Routes, rows_MC: Tensor) -> Tensor:
        ctx.ways, ctx.routes = ways, routes
        return ways.to_experts(routes, rows_MC)

    @staticmethod
    def backward(ctx: Any, grad_RC: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.ways.from_experts(ctx.routes, grad_RC)


class _FromExperts(Function):
    """From the experts, and gradients of what returned to them."""

    @staticmethod
    def forward(ctx: Any, ways: _Ways, routes: _Routes, rows_RC: Tensor) -> Tensor:
        ctx.ways, ctx.routes = ways, routes
        return ways.from_experts(routes, rows_RC)

    @staticmethod
    def backward(ctx: Any, grad_MC: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.ways.to_experts(ctx.routes, grad_MC)
