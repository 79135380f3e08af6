"""AdamW on flat buffers. Source: Loshchilov and Hutter 2017 (arXiv:1711.05101).

The kernel is torch's fused one: a single pass over weights, gradient and both moments. It treats
all elements alike as long as buffers are cut at multiples of its vectors, which chunks of 64 are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWConfig:
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What a rank owns of one bucket: master weights and both moments, flat, all of one size.

    The first `num_decayed` elements get weight decay.
    """

    values: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    num_decayed: int

    @staticmethod
    def zeros(size: int, num_decayed: int, dtype: torch.dtype, device: torch.device) -> "Shard":
        values, exp_avg, exp_avg_sq = (
            torch.zeros(size, dtype=dtype, device=device) for _ in range(3)
        )
        return Shard(values=values, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, num_decayed=num_decayed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of one update: what the gradients are multiplied by, and how fast weights follow."""

    lr: float
    factor: float = 1.0


class AdamW:
    """Updates shards. What it remembers lies in them, but for the number of updates."""

    def __init__(self, config: AdamWConfig) -> None:
        self.config = config

    def update(
        self, shards: Sequence[Shard], gradients: Sequence[Tensor], count: int, rates: Rates
    ) -> None:
        """The `count`-th update, in place, counted from 1; decay is decoupled from the gradients.

        The gradients are of the shards' sizes, and are used up.
        """
        seen = torch.tensor([count], dtype=torch.float32)
        for shard, gradient in zip(shards, gradients, strict=True):
            scaled = gradient.to(shard.values.dtype).mul_(rates.factor)
            stop, lr = shard.num_decayed, rates.lr
            self._update(shard, scaled, slice(stop), seen, (lr, self.config.weight_decay))
            self._update(shard, scaled, slice(stop, None), seen, (lr, 0.0))

    def _update(
        self,
        shard: Shard,
        gradient: Tensor,
        span: slice,
        count: Tensor,
        rates: tuple[float, float],
    ) -> None:
        """`rates` are the learning rate and the weight decay."""
        if not gradient[span].numel():
            return
        torch._fused_adamw_(
            [shard.values[span]],
            [gradient[span]],
            [shard.exp_avg[span]],
            [shard.exp_avg_sq[span]],
            [],
            [count.to(gradient.device)],
            lr=rates[0],
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            weight_decay=rates[1],
            eps=self.config.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )
