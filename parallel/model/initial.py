"""Initial parameters, each drawn whole from a hash of (seed, name).

A value depends on nothing else: not on the layout, nor on the order in which parameters are made,
nor on who draws it. So every rank draws what it holds and no broadcast is needed. One generator
over the whole model would be shorter, but then a rank that holds the last layer would have to draw
all layers before it.
"""

import hashlib
import math

import torch
from torch import Tensor

from remesh.parallel.plan.model_config import ModelConfig

_STD = 0.02


def draw(seed: int, name: str, shape: tuple[int, ...], *, std: float = _STD) -> Tensor:
    """A whole fp32 tensor of normal values with mean 0, the same whoever draws it."""
    generator = torch.Generator().manual_seed(_key(seed, name))
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)


def initial_value(config: ModelConfig, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """The parameter `name` at step 0: norms 1, biases 0, residual projections smaller.

    Source: Radford et al. 2019 (GPT-2), 2.3: residual projections scaled by 1 / sqrt(2 * layers).
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=torch.float32)
    if name.endswith(".bias"):
        return torch.zeros(shape, dtype=torch.float32)
    if name.endswith(("attention.output.weight", ".down.weight")):
        return draw(seed, name, shape, std=_STD / math.sqrt(2 * config.num_layers))
    return draw(seed, name, shape)


def _key(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/parameter/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
