"""The shape of a decoder-only transformer as a value, and what follows from it without torch."""

import math
from dataclasses import dataclass, fields

from remesh.parallel.errors import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of the model. A head is `width / num_heads` wide; query heads share the kv heads.

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

    def problems(self) -> tuple[str, ...]:
        """One sentence for each value that does not fit, each with its cure; empty when all fit."""
        too_small = tuple(
            f"{field.name}={value:g} is not positive; use a number above 0"
            for field in fields(self)
            if not (value := getattr(self, field.name)) > 0
        )
        return too_small or self._head_problems() or self._kv_head_problems()

    def _head_problems(self) -> tuple[str, ...]:
        # RoPE turns pairs of channels, so that a head must be of even width.
        workable = [n for n in _divisors(self.width) if self.width // n % 2 == 0]
        if self.num_heads in workable:
            return ()
        if not workable:
            return (f"width={self.width} is odd, and heads must be of even width; use an even one",)
        seen = (
            f"num_heads={self.num_heads} does not cut width={self.width} into heads of even width"
        )
        return (f"{seen}; use one of {_listed(workable)}",)

    def _kv_head_problems(self) -> tuple[str, ...]:
        workable = _divisors(self.num_heads)
        if self.num_kv_heads in workable:
            return ()
        seen = f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}"
        return (f"{seen}; use one of {_listed(workable)}",)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and full shape of every parameter, in the model's own order."""
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (config.vocab_size, config.width)}
    for layer in range(config.num_layers):
        shapes |= {f"layers.{layer}.{name}": s for name, s in _layer_shapes(config).items()}
    shapes["norm.weight"] = (config.width,)
    shapes["head.weight"] = (config.vocab_size, config.width)
    return shapes


def num_parameters(config: ModelConfig) -> int:
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, kv_width, ffn_width = config.width, config.kv_width, config.ffn_width
    return {
        "attention_norm.weight": (width,),
        "attention.query.weight": (width, width),
        "attention.key.weight": (kv_width, width),
        "attention.value.weight": (kv_width, width),
        "attention.output.weight": (width, width),
        "ffn_norm.weight": (width,),
        "ffn.gate.weight": (ffn_width, width),
        "ffn.up.weight": (ffn_width, width),
        "ffn.down.weight": (width, ffn_width),
    }


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
