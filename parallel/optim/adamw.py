"""AdamW on flat fp32 buffers. Source: Loshchilov and Hutter 2017 (arXiv:1711.05101)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWConfig:
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1


class AdamW:
    """Both moments, and how many updates they have seen: a skipped step does not count.

    The first `num_decayed` elements get weight decay, decoupled from the gradient.
    """

    def __init__(self, config: AdamWConfig, size: int, num_decayed: int) -> None:
        self.config = config
        self.num_decayed = num_decayed
        self.exp_avg = torch.zeros(size)
        self.exp_avg_sq = torch.zeros(size)
        self.num_updates = torch.zeros(1, dtype=torch.int64)
        self._scratch = torch.empty(size)

    def reset(self) -> None:
        for tensor in (self.exp_avg, self.exp_avg_sq, self.num_updates):
            tensor.zero_()

    def update(self, values: Tensor, gradient: Tensor, lr: float) -> None:
        """One update of `values` in place."""
        config = self.config
        self.num_updates += 1
        count = int(self.num_updates)
        self.exp_avg.lerp_(gradient, 1 - config.beta1)
        self.exp_avg_sq.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
        root = torch.sqrt(self.exp_avg_sq, out=self._scratch)
        root.div_(math.sqrt(1 - config.beta2**count)).add_(config.eps)
        values[: self.num_decayed].mul_(1 - lr * config.weight_decay)
        values.addcdiv_(self.exp_avg, root, value=-lr / (1 - config.beta1**count))
