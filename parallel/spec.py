"""What a rank computes, as values: all that a step depends on besides the data and the mesh."""

from dataclasses import dataclass, field

import torch

from remesh.parallel.model.recompute import Recompute
from remesh.parallel.model.router import RouterRates
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.optim.optimizer import Optimizer
from remesh.parallel.plan.buckets import BUCKET_BYTES
from remesh.parallel.plan.cut import Cut
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.leaves import LeafTree
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.pieces import shard_size
from remesh.parallel.plan.pipeline import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Types of working weights and activations, of summed gradients, and of the state."""

    compute: torch.dtype = torch.float32
    gradient: torch.dtype = torch.float32
    master: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSpec:
    """What replicas share out. Source: Rajbhandari et al. 2019 (arXiv:1910.02054).

    Stage 1 shards the optimizer and the master weights, 2 the gradients too, 3 the working weights
    too. `group` replicas share one copy, 0 stands for all of them. A bucket has up to
    `bucket_bytes` of gradients. `keep_gathered` keeps stage 3's weights from their first use in a
    step to its update.
    """

    stage: int = 0
    group: int = 0
    bucket_bytes: int = BUCKET_BYTES
    keep_gathered: bool = False

    def shard_size(self, dp: int, ring: int = 1) -> int:
        """How many ranks hold one copy of the state together, of `ring` in each of `dp` replicas.

        Those of a ring have tokens of the same rows and the same share of the model.
        """
        return shard_size(self.stage, self.group, dp, ring)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """`microbatch` is in sequences. `same_bits` adds gradients in an order that no dp changes: that
    of a tree over the leaves in `num_segments` segments.
    """

    model: ModelConfig
    seed: int
    num_leaves: int
    microbatches_per_leaf: int
    microbatch: int
    lr: LrCurve
    optimizer: Optimizer
    clip: float
    z_loss: float = 0.0
    router: RouterRates = field(default_factory=RouterRates)
    precision: Precision = field(default_factory=Precision)
    zero: ZeroSpec = field(default_factory=ZeroSpec)
    recompute: Recompute = field(default_factory=Recompute)
    sequence: bool = False
    same_bits: bool = True
    num_segments: int = 1

    @property
    def tree(self) -> LeafTree:
        """How the gradients of all leaves are added up."""
        return LeafTree(num_leaves=self.num_leaves, num_segments=self.num_segments)

    def cut(self, layout: Layout, shards: int, pipeline: Pipeline | None = None) -> Cut:
        """Into which parts the state falls where `shards` ranks share one copy."""
        bucket_elements = self.zero.bucket_bytes // self.precision.gradient.itemsize
        return Cut.of(layout, shards, bucket_elements, pipeline)
