"""AdamW on flat buffers. Source: Loshchilov and Hutter 2017 (arXiv:1711.05101).

The kernel is torch's fused one: a single pass over weights, gradient and both moments. It treats
all elements alike as long as buffers are cut at multiples of its vectors, which chunks of 64 are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from remesh.parallel.optim.optimizer import MasterShard, Rates
from remesh.parallel.optim.slots import ADAMW_SLOTS, SlotSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Decay is decoupled from the gradients."""

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    slots: ClassVar[tuple[SlotSpec, ...]] = ADAMW_SLOTS

    def update(
        self, shards: Sequence[MasterShard], gradients: Sequence[Tensor], count: int, rates: Rates
    ) -> None:
        seen = torch.tensor([count], dtype=torch.float32)
        for shard, gradient in zip(shards, gradients, strict=True):
            scaled = gradient.to(shard.values.dtype).mul_(rates.factor)
            stop, lr = shard.num_decayed, rates.lr
            self._update(shard, scaled, slice(stop), seen, (lr, self.weight_decay))
            self._update(shard, scaled, slice(stop, None), seen, (lr, 0.0))

    def _update(
        self,
        shard: MasterShard,
        gradient: Tensor,
        span: slice,
        count: Tensor,
        rates: tuple[float, float],
    ) -> None:
        """`rates` are the learning rate and the weight decay."""
        if not gradient[span].numel():
            return
        first, second = (shard.slots[slot.name] for slot in self.slots)
        torch._fused_adamw_(
            [shard.values[span]],
            [gradient[span]],
            [first[span]],
            [second[span]],
            [],
            [count.to(gradient.device)],
            lr=rates[0],
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=rates[1],
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )
