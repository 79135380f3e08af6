"""Hugging Face's config.json as our sizes of a model, and the other way round.

What the file says and this model cannot do is refused by name: a model that is computed in another
way than it was trained in gives no error, only bad words.
"""

import sys
from collections.abc import Mapping
from typing import Any

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.state.bounded_json import shown

# What the [model] table of a job file can say; a token is a number of 16 bits in a dataset.
MAX_SIZE = 2**20
MAX_VOCABULARY = 2**16
READABLE = "Llama 2 and its like, TinyLlama, SmolLM2, Yi-6B and Mixtral 8x7B"

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
}
_OTHER_EXPERTS = {
    "qwen2_moe": "Qwen2-MoE",
    "qwen3_moe": "Qwen3-MoE",
}
_SIZES = {
    "num_layers": "num_hidden_layers",
    "width": "hidden_size",
    "num_heads": "num_attention_heads",
    "ffn_width": "intermediate_size",
    "vocab_size": "vocab_size",
}
_EXPERTS = {"num_experts": "num_local_experts", "top_k": "num_experts_per_tok"}
# What is meant where a config.json does not say it.
_THETAS = {"llama": 10000.0, "qwen3": 10000.0, "mixtral": 1e6}
_LEFT_OUT = {"rms_norm_eps": 1e-6}
_LEFT_OUT_OF = {
    "mixtral": {
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
}
# What a config.json says beyond the model itself, for whoever serves it.
CONTEXT = "max_position_embeddings"
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_MAX_CONTEXT = 2**31
_MOST_TOKENS = 64

Values = Mapping[str, Any]


def model_of(values: Values, seq_len: int) -> ModelConfig:
    """The model that a config.json describes. Raises: CheckpointError, LayoutError."""
    kind = _kind(values)
    values = {**_LEFT_OUT, **_LEFT_OUT_OF.get(kind, {}), **values}
    sizes: dict[str, Any] = {name: _count(values, key) for name, key in _SIZES.items()}
    check_vocabulary("config.json: vocab_size", sizes["vocab_size"])
    _check(values, sizes["width"] // max(sizes["num_heads"], 1))
    if kind == "mixtral":
        sizes |= {name: _count(values, key) for name, key in _EXPERTS.items()}
    kv_heads = values.get("num_key_value_heads")
    return ModelConfig(
        **sizes,
        num_kv_heads=sizes["num_heads"]
        if kv_heads is None
        else _count(values, "num_key_value_heads"),
        seq_len=seq_len,
        rope_theta=_theta(values, kind),
        norm_eps=_number(values["rms_norm_eps"], "rms_norm_eps"),
        bias=_bias(values, kind),
        qk_norm=kind == "qwen3",
        tied=_flag(values, "tie_word_embeddings"),
    )


def words_of(values: Values) -> dict[str, Any]:
    """What a config.json says of a model's use, which the model itself does not know: the longest
    context and the special tokens. What it does not say is left out.

    Raises: CheckpointError for what cannot be.
    """
    found = {key: values.get(key) for key in (CONTEXT, *SPECIAL_TOKENS)}
    words = {key: value for key, value in found.items() if value is not None}
    for key, value in words.items():
        tokens = value if isinstance(value, list) and key != CONTEXT else [value]
        least = 1 if key == CONTEXT else -1
        if len(tokens) > _MOST_TOKENS or not all(
            type(token) is int and least <= token < _MAX_CONTEXT for token in tokens
        ):
            raise CheckpointError(
                f"config.json: {key} = {shown(value)} cannot be; fetch it again, or correct it"
            )
    return words


def config_of(
    model: ModelConfig, dtype: str, words: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The config.json of a model that Hugging Face has a class for.

    `words` are those of the model that it began as; a longer context it has learned since counts.

    Raises: CheckpointError, naming what none of its classes does.
    """
    words = words or {}
    kind = "mixtral" if model.num_experts else "qwen3" if model.qk_norm else "llama"
    _check_exportable(model)
    values: dict[str, Any] = {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "dtype": dtype,
        "torch_dtype": dtype,
        "hidden_act": "silu",
        "head_dim": model.head_width,
        "num_key_value_heads": model.num_kv_heads,
        CONTEXT: max(words.get(CONTEXT, 0), model.seq_len),
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "attention_bias": model.bias,
        "tie_word_embeddings": model.tied,
    }
    values |= {key: words.get(key) for key in SPECIAL_TOKENS}
    values |= {key: getattr(model, name) for name, key in _SIZES.items()}
    if kind == "mixtral":
        values |= {key: getattr(model, name) for name, key in _EXPERTS.items()}
        values["intermediate_size"] = model.inner_width
    return values | ({"mlp_bias": model.bias} if kind == "llama" else {})


def check_vocabulary(what: str, num_tokens: int) -> None:
    """Raises: CheckpointError if no job can have so many, since no [model] table can say so."""
    if num_tokens > MAX_VOCABULARY:
        raise CheckpointError(
            f"{what} = {num_tokens}, and a vocabulary has at most {MAX_VOCABULARY:,} tokens here; "
            f"use a model with fewer, such as {READABLE}"
        )


def _kind(values: Values) -> str:
    kind = values.get("model_type")
    if isinstance(kind, str) and kind in _OTHER_EXPERTS:
        raise CheckpointError(
            f"config.json: {_OTHER_EXPERTS[kind]} has other experts than Mixtral, which are not "
            "read yet; use a llama, qwen3 or mixtral"
        )
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise CheckpointError(
            f"config.json: model_type = {shown(kind)} is unknown; use llama, qwen3 or mixtral, "
            f"such as {READABLE}"
        )
    return kind


def _check(values: Values, head_width: int) -> None:
    head_dim = values.get("head_dim")
    if head_dim not in (None, head_width):
        raise CheckpointError(
            f"config.json: head_dim = {shown(head_dim)}, and heads are hidden_size / "
            f"num_attention_heads = {head_width} wide here; use a model where both are equal"
        )
    act = values.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise CheckpointError(
            f"config.json: hidden_act = {shown(act)} is unknown; use a model with silu"
        )
    layers = values.get("layer_types") or []
    full = ["full_attention"] * (len(layers) if isinstance(layers, list) else 0)
    window = values.get("model_type") == "mixtral" and values.get("sliding_window") is not None
    if _flag(values, "use_sliding_window") or window or layers != full:
        raise CheckpointError(
            "config.json: sliding-window attention is not there yet; use a model whose layers all "
            "see every position"
        )
    if values.get("quantization_config"):
        raise CheckpointError(
            "config.json: the weights are quantized; fetch those in bf16, fp16 or fp32"
        )


def _theta(values: Values, kind: str) -> float:
    """Base of the rotary angles: of transformers 5 in `rope_parameters`, before it beside them."""
    found = [values.get("rope_theta")]
    for key in ("rope_scaling", "rope_parameters"):
        told = values.get(key) or {}
        if not isinstance(told, dict):
            raise CheckpointError(f"config.json: {key} = {shown(told)} is no table; fetch it again")
        _check_rope(key, told)
        found.append(told.get("rope_theta"))
    thetas = {_number(theta, "rope_theta") for theta in found if theta is not None}
    if len(thetas) > 1:
        raise CheckpointError(
            f"config.json: rope_theta is {' and '.join(map(str, sorted(thetas)))} in different "
            "places; leave the one that the model was trained with"
        )
    return thetas.pop() if thetas else _THETAS[kind]


def _check_rope(key: str, told: Values) -> None:
    kind = told.get("rope_type", told.get("type", "default"))
    if kind != "default":
        raise CheckpointError(
            f"config.json: {key} is of type {shown(kind)}, and scaled rotary positions are not "
            "there yet; use a model without them"
        )
    if told.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(
            f"config.json: {key}.partial_rotary_factor turns some channels only, which is not "
            "there yet; use a model that turns all"
        )


def _bias(values: Values, kind: str) -> bool:
    attention, mlp = _flag(values, "attention_bias"), _flag(values, "mlp_bias")
    if attention != mlp or (attention and kind != "llama"):
        raise CheckpointError(
            f"config.json: attention_bias = {attention}, mlp_bias = {mlp}: biases are on all "
            "linear maps of a layer or on none here; use a model without them"
        )
    return attention


def _check_exportable(model: ModelConfig) -> None:
    for key, value, needed in (
        ("norm", model.norm, "rms"),
        ("positions", model.positions, "rope"),
        ("activation", model.activation, "swiglu"),
    ):
        if value != needed:
            raise CheckpointError(
                f"model.{key} = {value}: neither Llama nor Qwen3 has that, both need {needed}; "
                "export with --to dcp"
            )
    _check_mixtral(model)
    if model.bias and model.qk_norm:
        raise CheckpointError(
            "model.bias and model.qk_norm: neither Llama nor Qwen3 has both; export with --to dcp"
        )


def _check_mixtral(model: ModelConfig) -> None:
    """A Mixtral has experts alone, and says only how many."""
    if not model.num_experts:
        return
    for key, needed in (
        ("num_shared_experts", 0),
        ("num_dense_layers", 0),
        ("score", "softmax"),
        ("normed_scores", True),
        ("balanced", False),
        ("capacity_factor", 0.0),
        ("bias", False),
        ("qk_norm", False),
    ):
        value = getattr(model, key)
        if value != needed:
            raise CheckpointError(
                f"model.{key} = {value}: a Mixtral needs {needed}; export with --to dcp"
            )


def _count(values: Values, key: str) -> int:
    value = values.get(key)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"config.json: {key} = {shown(value)} is no whole number above 0")
    if value > MAX_SIZE:
        raise CheckpointError(
            f"config.json: {key} = {shown(value)} is more than the {MAX_SIZE:,} that a job file "
            "can say; use another model"
        )
    return value


def _flag(values: Values, key: str) -> bool:
    value = values.get(key)
    if value is not None and type(value) is not bool:
        raise CheckpointError(f"config.json: {key} = {shown(value)} is neither true nor false")
    return bool(value)


def _number(value: Any, key: str) -> float:
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"config.json: {key} = {shown(value)} is no number above 0")
    return float(value)
