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
        seen, divisor = torch.tensor([[count], [1 / rates.factor]], dtype=torch.float32)
        for shard, gradient in zip(shards, gradients, strict=True):
            wide = gradient.to(shard.values.dtype)
            counts = seen.to(wide.device), divisor.to(wide.device)
            if wide.dtype != torch.float32:  # what the kernel divides by has 24 bits
                wide, counts = wide.mul_(rates.factor), (counts[0], None)
            stop, lr = shard.num_decayed, rates.lr
            self._update(shard, wide, slice(stop), counts, (lr, self.weight_decay))
            self._update(shard, wide, slice(stop, None), counts, (lr, 0.0))

    def _update(
        self,
        shard: MasterShard,
        gradient: Tensor,
        span: slice,
        counts: tuple[Tensor, Tensor | None],
        rates: tuple[float, float],
    ) -> None:
        """`counts` are that of the update, and by what the kernel divides the gradient as it reads
        it; `rates` are the learning rate and the weight decay.
        """
        if not gradient[span].numel():
            return
        first, second = (shard.slots[slot.name] for slot in self.slots)
        torch._fused_adamw_(
            [shard.values[span]],
            [gradient[span]],
            [first[span]],
            [second[span]],
            [],
            [counts[0]],
            lr=rates[0],
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=rates[1],
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=counts[1],
            found_inf=None,
        )
