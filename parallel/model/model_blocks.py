"""The model as a row of blocks: all that whoever runs it may know of it, without any name.

A block is what is computed at once and has an autograd graph of its own. The row can be cut
anywhere: what one block gives is what the next one is computed from.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from remesh.parallel.numerics.losses import Losses
from remesh.parallel.plan.model_config import ModelConfig, block_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBlock:
    """One block: `compute` takes what the block before gave, the first one tokens, and targets.

    The last one alone looks at the targets, and gives losses. `reads_weights`: whether its backward
    does. `recomputed`: backward computes it a second time, from its input.
    """

    compute: Callable[[Tensor, Tensor | None], Tensor | Losses]
    reads_weights: bool = True
    recomputed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParameter:
    """The parameter `source` of the block `owner`, which the block `user` knows as its own `name`.

    Until the gradients of both are whole, each has its own.
    """

    name: str
    source: str
    owner: int
    user: int


def shared_parameters(config: ModelConfig) -> tuple[SharedParameter, ...]:
    """Those that two blocks compute with; blocks are counted as `block_parameters` lists them."""
    if not config.tied:
        return ()
    last = len(block_parameters(config)) - 1
    return (SharedParameter(name="head.weight", source="embedding.weight", owner=0, user=last),)
