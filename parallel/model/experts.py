"""A feed-forward net of many experts, to a few of which each token goes.

Shapes: B sequences, T positions, C width, F this rank's share of an expert's width, E experts,
K experts of a token, M rows of tokens, sorted by expert.
Source: Shazeer et al. 2017 (arXiv:1701.06538); Dai et al. 2024 (arXiv:2401.06066), shared experts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from remesh.parallel.model.expert_maps import Stack
from remesh.parallel.model.feed_forward import FeedForward
from remesh.parallel.model.maths import Linear, Maths
from remesh.parallel.model.router import (
    CountedLoads,
    RouterRates,
    Routing,
    auxiliary_loss,
    loads,
    route,
    router_z_loss,
    with_loss,
)
from remesh.parallel.plan.model_config import ModelConfig


class ExpertFeedForward(nn.Module):
    """A router, experts, and shared ones that all tokens go to: these are one wider net.

    With a tally backward adds to it how often each expert was chosen.
    """

    def __init__(self, config: ModelConfig, maths: Maths, rates: RouterRates) -> None:
        super().__init__()
        shared_width = config.num_shared_experts * config.inner_width
        self.config = config
        self.maths = maths
        self.rates = rates
        self.tally: Tensor | None = None
        self.router = Linear(config.width, config.num_experts)
        self.balance = Balance(config.num_experts) if config.balanced else None
        self.experts = Experts(config, maths)
        self.shared = FeedForward(config, shared_width, maths) if shared_width else None

    def forward(self, x_BTC: Tensor) -> Tensor:
        routing = self._routing(self.maths.outer(x_BTC, self.router))
        sent = self.maths.dispatch(x_BTC, routing.chosen, self.config)
        rows_MC = self.experts(sent.rows, sent.counts)
        out_BTC = self.maths.combine(rows_MC, routing.weights, sent)
        return out_BTC if self.shared is None else out_BTC + self.shared(x_BTC)

    def _routing(self, logits_BTE: Tensor) -> Routing:
        rates, bias_E = self.rates, None if self.balance is None else self.balance.bias
        routing, scores_BTE = route(self.config, logits_BTE, bias_E)
        if not (rates.auxiliary or rates.z_loss or self.tally is not None):
            return routing
        loads_BE = loads(routing.chosen, self.config.num_experts)
        loads_BE = self.maths.over_sequence(loads_BE)
        loss = torch.zeros_like(scores_BTE[0, 0, 0])
        if rates.auxiliary:
            loss = loss + rates.auxiliary * auxiliary_loss(scores_BTE, loads_BE)
        if rates.z_loss:
            loss = loss + rates.z_loss * router_z_loss(logits_BTE)
        counted = None if self.tally is None else CountedLoads(tally=self.tally, loads=loads_BE)
        weights_BTK = with_loss(routing.weights, loss, counted)
        return Routing(chosen=routing.chosen, weights=weights_BTK)


class Balance(nn.Module):
    """A bias for each expert by which a router chooses. No gradient moves it, but their loads."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(num_experts))


class Experts(nn.Module):
    """The nets themselves, as the dense one is, without biases."""

    def __init__(self, config: ModelConfig, maths: Maths) -> None:
        super().__init__()
        count, width, inner = config.num_experts, config.width, config.inner_width
        self.gate = Stack(count, width, inner) if config.activation == "swiglu" else None
        self.up = Stack(count, width, inner)
        self.down = Stack(count, inner, width)
        self.maths = maths

    def forward(self, x_MC: Tensor, counts: Sequence[int]) -> Tensor:
        if self.gate is None:
            (up_MF,) = self.maths.products(x_MC, counts, self.up)
            h_MF = functional.gelu(up_MF)
        else:
            gate_MF, up_MF = self.maths.products(x_MC, counts, self.gate, self.up)
            h_MF = functional.silu(gate_MF) * up_MF
        [out_MC] = self.maths.products(h_MF, counts, self.down)
        return out_MC
