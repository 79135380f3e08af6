"""Tokens on their way to experts and back: sorted by expert, and weighed where they return.

Rows of one expert lie together and in the order of their tokens. Backward adds up the rows of a
token in the order of its experts, from the best one on: an index operation of torch's own would add
them in whatever order they come.

Shapes: B sequences, T positions, N = B * T tokens, K experts of a token, E experts, C width,
M rows that go to experts: one for each token and expert of it that takes the token.
Source: Gale et al. 2022 (arXiv:2211.15841), 5, no token has to be dropped.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from remesh.parallel.plan.model_config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlaces:
    """Where tokens are among the rows: `sources` are places in N * K of the rows, `rows` the row of
    each token and choice, M of those that were dropped.
    """

    sources: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """Rows for experts: those of the first one, then those of the next, `counts` of each.

    `routes` are how they came here, known to who brought them.
    """

    rows: Tensor
    counts: tuple[int, ...]
    places: RowPlaces
    shape: tuple[int, int]
    routes: Any = None


def capacity_of(config: ModelConfig, num_positions: int) -> int | None:
    """Tokens of a sequence that an expert takes at most, None for all that choose it.

    Source: Fedus et al. 2021 (arXiv:2101.03961), (3), there of a batch. Of a sequence it is the
    same however many of these are computed together.
    """
    if not config.capacity_factor:
        return None
    even = config.top_k * num_positions / config.num_experts
    return math.ceil(config.capacity_factor * even)


def within_capacity(
    chosen_BTK: Tensor, num_experts: int, capacity: int | None, before_BE: Tensor | None = None
) -> Tensor:
    """The experts that take the tokens: E in the place of one that is full, first come first.

    `before_BE` says how many tokens of the same sequences each expert has been chosen by before.
    """
    if capacity is None:
        return chosen_BTK
    chosen_BN = chosen_BTK.flatten(1)
    taken_BNE = torch.nn.functional.one_hot(chosen_BN, num_experts)
    turn_BN = taken_BNE.cumsum(1).gather(2, chosen_BN[..., None])[..., 0]
    if before_BE is not None:
        turn_BN = turn_BN + before_BE.gather(1, chosen_BN)
    return chosen_BN.masked_fill(turn_BN > capacity, num_experts).view_as(chosen_BTK)


def dispatch(x_BTC: Tensor, chosen_BTK: Tensor, config: ModelConfig) -> Dispatched:
    """A row of each token for each expert that takes it, which is none where E was chosen.

    Experts can be full only where the sequences are whole.

    Cost: waits for the device, to know how many rows each expert has.
    """
    num_sequences, num_positions, _ = x_BTC.shape
    num_experts, capacity = config.num_experts, capacity_of(config, num_positions)
    chosen_N = within_capacity(chosen_BTK, num_experts, capacity).flatten()
    counts = torch.bincount(chosen_N, minlength=num_experts).tolist()[:num_experts]
    source_M = chosen_N.argsort(stable=True)[: sum(counts)]
    row_NK = torch.full_like(chosen_N, len(source_M))
    row_NK[source_M] = torch.arange(len(source_M), device=chosen_N.device)
    places = RowPlaces(sources=source_M, rows=row_NK.view(-1, chosen_BTK.shape[-1]))
    rows_MC: Tensor = _SortedRows.apply(x_BTC.flatten(0, 1), places)  # type: ignore[no-untyped-call]
    shape = (num_sequences, num_positions)
    return Dispatched(rows=rows_MC, counts=tuple(counts), places=places, shape=shape)


def combine(
    rows_MC: Tensor, weights_BTK: Tensor, places: RowPlaces, shape: tuple[int, int]
) -> Tensor:
    """What a token's experts say, added up by their weights; 0 of one that was full."""
    weights_NK = weights_BTK.flatten(0, 1).to(rows_MC.dtype)
    out_NC: Tensor = _WeighedRows.apply(rows_MC, weights_NK, places)  # type: ignore[no-untyped-call]
    return out_NC.view(*shape, -1)


class _SortedRows(Function):
    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, places: RowPlaces) -> Tensor:
        ctx.rows = places.rows
        return x_NC[places.sources // places.rows.shape[1]]

    @staticmethod
    def backward(ctx: Any, grad_MC: Tensor) -> tuple[Tensor, None]:
        return _gathered(grad_MC, ctx.rows).sum(1), None


class _WeighedRows(Function):
    @staticmethod
    def forward(ctx: Any, rows_MC: Tensor, weights_NK: Tensor, places: RowPlaces) -> Tensor:
        ctx.places = places
        ctx.save_for_backward(rows_MC, weights_NK)
        return (_gathered(rows_MC, places.rows) * weights_NK[..., None]).sum(1)

    @staticmethod
    def backward(ctx: Any, grad_NC: Tensor) -> tuple[Tensor, Tensor, None]:
        rows_MC, weights_NK = ctx.saved_tensors
        source_M = ctx.places.sources
        grad_MC = grad_NC[source_M // weights_NK.shape[1]]
        of_weights_N = torch.zeros_like(weights_NK).flatten()
        of_weights_N[source_M] = (grad_MC * rows_MC).sum(-1)
        of_rows_MC = grad_MC * weights_NK.flatten()[source_M, None]
        return of_rows_MC, of_weights_N.view_as(weights_NK), None


def _gathered(rows_MC: Tensor, row_NK: Tensor) -> Tensor:
    """The rows of each token, (N, K, C); 0 of those that were dropped."""
    return torch.cat((rows_MC, rows_MC.new_zeros(1, rows_MC.shape[1])))[row_NK]
