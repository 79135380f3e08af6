"""The model: its widths, its parts, its experts."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from remesh.orchestrator.job.tables.kinds import (
    TABLE,
    Dimension,
    DimensionOrZero,
    NotNegative,
    Positive,
)


class ModelTable(BaseModel):
    """`bias` gives one to every linear map but the head, `qk_norm` norms the heads of q and k.

    A `tied` model reads its words with the weights of its embedding.

    With `num_experts` the layers after the first `num_dense_layers` have experts, `top_k` of which
    each token goes to. `score` and `normed_scores` say what they count; a `balanced` router adds a
    bias to the scores by which it chooses, which follows how often each expert is chosen. With a
    `capacity_factor` an expert that has so many times its share of a sequence takes no more.
    """

    model_config = TABLE
    num_layers: Dimension
    """Blocks of attention and feed-forward."""
    width: Dimension
    """Numbers that a token is between the blocks."""
    num_heads: Dimension
    """Heads of attention; they divide the width."""
    num_kv_heads: Dimension = Field(default_factory=lambda data: data["num_heads"])
    """Heads of keys and values, which divide the heads; as many as those by default."""
    ffn_width: Dimension
    """Inner width of the feed-forward part."""
    vocab_size: Annotated[int, Field(ge=2, le=2**16)] = 256
    """Tokens that there are; the 256 bytes by default."""
    rope_theta: Positive = 10000.0
    """Base of the rotary positions."""
    norm_eps: Positive = 1e-5
    """Added under the root of a norm."""
    norm: Literal["rms", "layer"] = "rms"
    """RMS norm, or layer norm."""
    positions: Literal["rope", "learned"] = "rope"
    """Rotary positions, or learned ones."""
    activation: Literal["swiglu", "gelu"] = "swiglu"
    """Gated SiLU, or GELU."""
    bias: bool = False
    """A bias in every linear map but the head."""
    qk_norm: bool = False
    """An RMS norm of each head of queries and keys."""
    tied: bool = False
    """The head uses the weights of the embedding."""
    num_experts: DimensionOrZero = 0
    """Feed-forward nets of a layer, to some of which each token goes; 0 for one that all go to."""
    top_k: Dimension = 2
    """Experts that a token goes to."""
    expert_width: DimensionOrZero = 0
    """Inner width of an expert; `ffn_width` if it is 0."""
    num_shared_experts: DimensionOrZero = 0
    """Experts that all tokens go to, beside those that are chosen."""
    num_dense_layers: DimensionOrZero = 0
    """First layers without experts."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """How a router scores experts: against each other, or each by itself."""
    normed_scores: bool = True
    """The scores of the experts of a token are made to add up to 1."""
    balanced: bool = False
    """A bias of each expert, by which it is chosen, follows how often it is."""
    capacity_factor: NotNegative = 0.0
    """Times its even share that an expert takes of a sequence; all that choose it if it is 0."""
