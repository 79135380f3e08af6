"""The bias of each expert, which follows its load in every step.

Loads are whole numbers, added up over all ranks with the vote: no order of additions can change
them. Ranks that compute the same tokens together count them all, as many times for each expert:
only who has more than the mean matters. The bias is a parameter as any other, in the buckets and
in all that is saved or moved; its gradient is 0, and an optimizer leaves it as it is. What lost:
counts as its gradient, which types of 16 bits could not add up.

Shapes: L layers with experts, E experts.
Source: DeepSeek-AI 2024 (arXiv:2412.19437), 2.1.2; Wang et al. 2024 (arXiv:2408.15664), 3.
"""

import torch
from torch import Tensor

from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.spec import EngineSpec


def expert_loads(spec: EngineSpec, device: torch.device) -> Tensor | None:
    """Zeros for the loads of a step, (L, E), None where no bias follows them."""
    if not spec.model.balanced:
        return None
    shape = spec.model.num_expert_layers, spec.model.num_experts
    return torch.zeros(shape, dtype=torch.int64, device=device)


def rebalance_(state: ShardState, loads_LE: Tensor, rate: float) -> None:
    """Moves each bias that this rank owns by `rate`, up where the load is below the mean.

    The mean is that of the layer's experts; one that has just this load stays where it is.
    """
    num_experts = loads_LE.shape[1]
    moves_LE = (loads_LE.sum(1, keepdim=True) - loads_LE * num_experts).sign()
    for number, (bucket, shard) in enumerate(zip(state.buckets, state.shards, strict=True)):
        owned = state.owned(number)
        for name, place in bucket.plan.places.items():
            start, stop = max(place.start, owned.start), min(place.stop, owned.stop)
            if not name.endswith(".balance.bias") or start >= stop:
                continue
            layer = int(name.split(".")[1]) - state.spec.model.num_dense_layers
            moves = moves_LE[layer, start - place.start : stop - place.start]
            shard.values[start - owned.start : stop - owned.start].add_(moves, alpha=rate)
