"""The shape of a decoder-only transformer as a value, and what follows from it without torch."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from remesh.parallel.plan.book.asked import Asked
from remesh.parallel.plan.book.verdict import problems
from remesh.parallel.plan.errors import LayoutError

Norm = Literal["rms", "layer"]
Positions = Literal["rope", "learned"]
Activation = Literal["swiglu", "gelu"]
Score = Literal["softmax", "sigmoid"]
TensorShape = tuple[int, ...]
Shapes = dict[str, TensorShape]

_CHOICES = {
    "norm": get_args(Norm),
    "positions": get_args(Positions),
    "activation": get_args(Activation),
    "bias": (False, True),
    "qk_norm": (False, True),
    "tied": (False, True),
    "score": get_args(Score),
    "normed_scores": (False, True),
    "balanced": (False, True),
}
_MAY_BE_ZERO = (
    "num_experts",
    "expert_width",
    "num_shared_experts",
    "num_dense_layers",
    "capacity_factor",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and kind of the model. A head is `width / num_heads` wide; query heads share kv heads.

    `bias` is that of every projection but the head; a layer norm has one anyway. `qk_norm` is an
    RMS norm over each head of queries and keys. `tied` makes the embedding the head as well.

    With `num_experts` the layers from `num_dense_layers` on have a router and experts, `top_k` of
    which each token goes to, beside the shared ones that all tokens go to. An expert is
    `expert_width` wide inside, `ffn_width` if that is 0, and has no bias. The `score` of an expert
    weighs what it says, `normed_scores` so that those of a token add up to 1. A `balanced` router
    adds a bias to the scores by which it chooses, and to no weight. Of a sequence an expert takes
    `capacity_factor` times its even share of tokens at most, and all of them if that is 0.

    Raises: LayoutError, naming the values that would work.
    """

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    ffn_width: int
    vocab_size: int
    seq_len: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    norm: Norm = "rms"
    positions: Positions = "rope"
    activation: Activation = "swiglu"
    bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    num_experts: int = 0
    top_k: int = 2
    expert_width: int = 0
    num_shared_experts: int = 0
    num_dense_layers: int = 0
    score: Score = "softmax"
    normed_scores: bool = True
    balanced: bool = False
    capacity_factor: float = 0.0

    def __post_init__(self) -> None:
        problems = self.problems()
        if problems:
            raise LayoutError("; ".join(problems))

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    @property
    def kv_width(self) -> int:
        return self.head_width * self.num_kv_heads

    @property
    def inner_width(self) -> int:
        """That of an expert."""
        return self.expert_width or self.ffn_width

    @property
    def num_expert_layers(self) -> int:
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    def has_experts(self, layer: int) -> bool:
        """Whether this layer has experts in the place of a dense feed-forward net."""
        return self.num_experts > 0 and layer >= self.num_dense_layers

    def problems(self) -> tuple[str, ...]:
        """One sentence for each value that does not fit, each with its cure; empty when all fit."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        unfit = tuple(
            f"{name}={value:g} is not positive; use a number above 0"
            for name, value in values.items()
            if name not in (*_CHOICES, *_MAY_BE_ZERO) and not value > 0
        ) + tuple(
            f"{name}={values[name]:g} is below 0; use 0 or more"
            for name in _MAY_BE_ZERO
            if not values[name] >= 0
        )
        unknown = tuple(
            f"{name}={values[name]} is unknown; use {' or '.join(map(str, choices)).lower()}"
            for name, choices in _CHOICES.items()
            if values[name] not in choices
        )
        return unfit + unknown or tuple(problems(self.asked))

    @property
    def asked(self) -> Asked:
        """The sizes that the rule book speaks of."""
        return Asked(
            num_layers=self.num_layers,
            width=self.width,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            ffn_width=self.ffn_width,
            positions=self.positions,
            seq_len=self.seq_len,
            num_experts=self.num_experts,
            top_k=self.top_k,
            inner_width=self.inner_width,
            num_dense_layers=self.num_dense_layers,
        )


def parameter_shapes(config: ModelConfig) -> Shapes:
    """Name and full shape of every parameter, in the model's own order."""
    return {name: shape for block in _blocks(config).values() for name, shape in block.items()}


def block_parameters(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The same names by the block that computes with them: embedding, layers.0, ..., head."""
    return {block: tuple(shapes) for block, shapes in _blocks(config).items()}


def _blocks(config: ModelConfig) -> dict[str, Shapes]:
    rows = (config.vocab_size, config.width)
    embedding: Shapes = {"embedding.weight": rows}
    if config.positions == "learned":
        embedding["positions.weight"] = (config.seq_len, config.width)
    blocks: dict[str, Shapes] = {"embedding": embedding}
    for layer in range(config.num_layers):
        block = f"layers.{layer}"
        blocks[block] = {f"{block}.{name}": s for name, s in _layer_shapes(config, layer).items()}
    blocks["head"] = _norm_shapes(config, "norm")
    if not config.tied:
        blocks["head"]["head.weight"] = rows
    return blocks


def _layer_shapes(config: ModelConfig, layer: int) -> Shapes:
    return {
        **_norm_shapes(config, "attention_norm"),
        **_attention_shapes(config),
        **_norm_shapes(config, "ffn_norm"),
        **(_expert_shapes(config) if config.has_experts(layer) else _ffn_shapes(config, "ffn")),
    }


def _norm_shapes(config: ModelConfig, name: str) -> Shapes:
    parts = ("weight", "bias") if config.norm == "layer" else ("weight",)
    return {f"{name}.{part}": (config.width,) for part in parts}


def _attention_shapes(config: ModelConfig) -> Shapes:
    width, kv_width = config.width, config.kv_width
    shapes = {
        **_linear_shapes(config, "attention.query", width, width),
        **_linear_shapes(config, "attention.key", kv_width, width),
        **_linear_shapes(config, "attention.value", kv_width, width),
        **_linear_shapes(config, "attention.output", width, width),
    }
    if config.qk_norm:
        shapes["attention.query_norm.weight"] = (config.head_width,)
        shapes["attention.key_norm.weight"] = (config.head_width,)
    return shapes


def _ffn_shapes(config: ModelConfig, name: str, ffn_width: int = 0) -> Shapes:
    width, ffn_width = config.width, ffn_width or config.ffn_width
    shapes: Shapes = {}
    for inward in _inward(config):
        shapes |= _linear_shapes(config, f"{name}.{inward}", ffn_width, width)
    return shapes | _linear_shapes(config, f"{name}.down", width, ffn_width)


def _expert_shapes(config: ModelConfig) -> Shapes:
    """Experts lie behind one another in one tensor for each of their maps."""
    count, width, inner = config.num_experts, config.width, config.inner_width
    shapes: Shapes = {"ffn.router.weight": (count, width)}
    if config.balanced:
        shapes["ffn.balance.bias"] = (count,)
    for inward in _inward(config):
        shapes[f"ffn.experts.{inward}.weight"] = (count, inner, width)
    shapes["ffn.experts.down.weight"] = (count, width, inner)
    if config.num_shared_experts:
        shapes |= _ffn_shapes(config, "ffn.shared", inner * config.num_shared_experts)
    return shapes


def _inward(config: ModelConfig) -> tuple[str, ...]:
    return ("gate", "up") if config.activation == "swiglu" else ("up",)


def _linear_shapes(config: ModelConfig, name: str, num_out: int, num_in: int) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (num_out, num_in)}
    if config.bias:
        shapes[f"{name}.bias"] = (num_out,)
    return shapes
