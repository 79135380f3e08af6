"""Causal attention with grouped heads, rotary positions and normed queries and keys.

Which tokens a rank attends with, where they stand and what they see is the business of `Maths`, and
how many heads there are follows from the tensors alone: so a rank's share of the tokens or of the
heads is computed by the same lines as all of them.

Shapes: B sequences, T positions, C width, H query heads, K kv heads, D head width.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from remesh.parallel.model.maths import Linear, Maths
from remesh.parallel.model.norms import RMSNorm, root_mean_square_normed
from remesh.parallel.model.recompute import recomputed
from remesh.parallel.plan.model_config import ModelConfig


class Rotary(nn.Module):
    """Turns each pair of channels by an angle that grows with the position.

    One serves all layers. Channels i and i + D/2 form a pair. Source: Su et al. 2021
    (arXiv:2104.09864).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        cos_TD, sin_TD = _tables(config)
        self.register_buffer("cos_TD", cos_TD, persistent=False)
        self.register_buffer("sin_TD", sin_TD, persistent=False)

    def forward(self, maths: Maths, *heads: Tensor) -> tuple[Tensor, ...]:
        """Tensors (B, heads, T, D) of the same T, whose positions `maths` knows."""
        num_tokens, dtype = heads[0].shape[2], heads[0].dtype
        cos_TD, sin_TD = (
            maths.placed(self.get_buffer(name), num_tokens).to(dtype)
            for name in ("cos_TD", "sin_TD")
        )
        return tuple(_Turned.apply(x_BHTD, cos_TD, sin_TD) for x_BHTD in heads)  # type: ignore[no-untyped-call]


class Attention(nn.Module):
    """H / K query heads share a kv head.

    With `recompute`, backward computes everything between the projections again instead of keeping
    it: that is most of a layer's memory and little of its time.
    Source: Ainslie et al. 2023 (arXiv:2305.13245), groups; Henry et al. 2020 (arXiv:2010.04245),
    normed queries and keys; Korthikanti et al. 2022 (arXiv:2205.05198), 5, recompute.
    """

    together = ("query", "key", "value")  # maps of one input

    def __init__(self, config: ModelConfig, maths: Maths, rotary: Rotary | None) -> None:
        super().__init__()
        width, kv_width, bias = config.width, config.kv_width, config.bias
        self.recompute = False
        self.head_width = config.head_width
        self.eps = config.norm_eps
        self.query = Linear(width, width, bias=bias)
        self.key = Linear(width, kv_width, bias=bias)
        self.value = Linear(width, kv_width, bias=bias)
        self.output = Linear(width, width, bias=bias)
        self.query_norm = _head_norm(config)
        self.key_norm = _head_norm(config)
        self.rotary = rotary
        self.maths = maths

    def forward(self, x_BTC: Tensor, segments_BT: Tensor | None = None) -> Tensor:
        inputs = [*self.maths.columns(x_BTC, self.query, self.key, self.value)]
        if self.query_norm is not None and self.key_norm is not None:
            norms = self.query_norm, self.key_norm
            inputs += [self.maths.inner(norm.weight) for norm in norms]
        attend = partial(self._attend, segments_BT)
        a_BTC = recomputed(attend, *inputs) if self.recompute else attend(*inputs)
        return self.maths.row(a_BTC, self.output)

    def _attend(
        self,
        segments_BT: Tensor | None,
        q_BTC: Tensor,
        k_BTC: Tensor,
        v_BTC: Tensor,
        *norms_D: Tensor,
    ) -> Tensor:
        q_BHTD, k_BKTD, v_BKTD = map(self._heads, (q_BTC, k_BTC, v_BTC))
        if norms_D:
            q_BHTD = root_mean_square_normed(q_BHTD, norms_D[0], self.eps)
            k_BKTD = root_mean_square_normed(k_BKTD, norms_D[1], self.eps)
        if self.rotary is not None:
            q_BHTD, k_BKTD = self.rotary(self.maths, q_BHTD, k_BKTD)
        a_BHTD = self.maths.attend(q_BHTD, k_BKTD, v_BKTD, segments_BT)
        return a_BHTD.transpose(1, 2).flatten(2)

    def _heads(self, x_BTC: Tensor) -> Tensor:
        num_sequences, num_positions, _ = x_BTC.shape
        return x_BTC.view(num_sequences, num_positions, -1, self.head_width).transpose(1, 2)


def _head_norm(config: ModelConfig) -> RMSNorm | None:
    return RMSNorm(config.head_width, config.norm_eps) if config.qk_norm else None


def _tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, (T, D), computed in fp64 and rounded once.

    On the CPU even where parameters are made without storage: a table is drawn from nothing else.
    """
    half = config.head_width // 2
    channels_D = torch.arange(half, dtype=torch.float64, device="cpu")
    positions_T = torch.arange(config.seq_len, dtype=torch.float64, device="cpu")
    rates_D = config.rope_theta ** (-channels_D / half)
    angles_TD = torch.outer(positions_T, rates_D).repeat(1, 2)
    return angles_TD.cos().float(), angles_TD.sin().float()


class _Turned(Function):
    """x * cos + (-high, low) * sin, in three passes over memory each way."""

    @staticmethod
    def forward(ctx: Any, x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        ctx.save_for_backward(cos_TD, sin_TD)
        (low, high), (sin_low, sin_high) = x_BHTD.chunk(2, -1), sin_TD.chunk(2, -1)
        out_BHTD = x_BHTD * cos_TD
        out_low, out_high = out_BHTD.chunk(2, -1)
        out_low.addcmul_(high, sin_low, value=-1)
        out_high.addcmul_(low, sin_high)
        return out_BHTD

    @staticmethod
    def backward(ctx: Any, grad_BHTD: Tensor) -> tuple[Tensor, None, None]:
        cos_TD, sin_TD = ctx.saved_tensors
        (low, high), (sin_low, sin_high) = grad_BHTD.chunk(2, -1), sin_TD.chunk(2, -1)
        of_x_BHTD = grad_BHTD * cos_TD
        of_low, of_high = of_x_BHTD.chunk(2, -1)
        of_low.addcmul_(high, sin_high)
        of_high.addcmul_(low, sin_low, value=-1)
        return of_x_BHTD, None, None
