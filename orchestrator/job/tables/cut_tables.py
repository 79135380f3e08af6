"""How a model is cut among workers: the degrees of a mesh, and what replicas share."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from remesh.orchestrator.job.tables.kinds import (
    MAX_DEGREE,
    TABLE,
    Count,
    Degree,
    DegreeOrZero,
    Dimension,
)
from remesh.parallel.plan.buckets import BUCKET_BYTES


class ParallelTable(BaseModel):
    """Degrees of the axes. `dp = "auto"` follows the workers that there are.

    The ranks of a tp group are on one node, unless `allow_cross_node_tp` lets them straddle nodes.
    With `sequence` they also share the tokens of what lies between the split layers.

    A pipeline of `pp` stages computes by a `schedule`; where a mesh has too few microbatches for
    it, by "1f1b", to the same bits. With "interleaved" each worker has `virtual_stages` of them,
    with "dualpipe-v" two. `layers` are those of each virtual stage, from front to back.
    """

    model_config = TABLE
    dp: Degree | Literal["auto"] = "auto"
    """Replicas; "auto" follows the workers that there are."""
    tp: Degree = 1
    """Workers that share each layer."""
    pp: Degree = 1
    """Stages of a pipeline: workers that have a part of the layers each."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe-v"] = "1f1b"
    """In which order the stages compute their microbatches."""
    virtual_stages: Degree = Field(
        default_factory=lambda data: 2 if data["schedule"] == "interleaved" else 1
    )
    """Parts of the model on each worker of a pipeline; 2 with "interleaved", 1 without."""
    layers: Annotated[tuple[Dimension, ...], Field(strict=False, max_length=MAX_DEGREE)] = ()
    """Layers of each stage, such as [3, 5], for pipelines of `pp` stages; as even as can be by
    default.
    """
    cp: Degree = 1
    """Workers that share each sequence: each has two runs of its tokens."""
    ep: Degree = 1
    """Replicas that share the experts of a layer; they are some of those of `dp`."""
    sequence: bool = False
    """The ranks of a tp group share the tokens between the split layers too."""
    allow_cross_node_tp: bool = False
    """A tp group may straddle nodes."""


class ZeroTable(BaseModel):
    """What replicas share instead of holding it whole: from `stage` 1 on the optimizer's state and
    the master weights, from 2 on the gradients, from 3 on the weights.

    `group` replicas share one copy, all of them if it is 0. Gradients travel in buckets of whole
    blocks of up to `bucket_bytes`. `keep_gathered` keeps weights of stage 3 from forward to
    backward.
    """

    model_config = TABLE
    stage: Annotated[int, Field(ge=0, le=3)] = 0
    """What replicas share: 1 the optimizer's state, 2 gradients too, 3 weights too."""
    group: DegreeOrZero = 0
    """So many replicas share one copy; 0 stands for all of them."""
    bucket_bytes: Count = BUCKET_BYTES
    """Bytes of gradients that travel at once."""
    keep_gathered: bool = False
    """At stage 3, weights are kept from forward to backward."""

    @model_validator(mode="after")
    def _stage_gathers(self) -> Self:
        if self.keep_gathered and self.stage != 3:  # noqa: PLR2004 - the stage's own name
            msg = (
                f"zero.keep_gathered = true: zero.stage = {self.stage} gathers no weights; set "
                f"zero.keep_gathered = false, or zero.stage = 3"
            )
            raise ValueError(msg)
        return self
