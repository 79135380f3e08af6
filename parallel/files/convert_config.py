"""Hugging Face's config.json as our sizes of a model, and the other way round.

What the file says and this model cannot do is refused by name: a model that is computed in another
way than it was trained in gives no error, only bad words.
"""

from collections.abc import Mapping
from typing import Any

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig

_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_EXPERTS = {
    "mixtral": "Mixtral",
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
_THETA = 10000.0
_EPS = 1e-6

Values = Mapping[str, Any]


def model_of(values: Values, seq_len: int) -> ModelConfig:
    """The model that a config.json describes. Raises: CheckpointError, LayoutError."""
    kind = _kind(values)
    sizes: dict[str, Any] = {name: _count(values, key) for name, key in _SIZES.items()}
    _check(values, sizes["width"] // max(sizes["num_heads"], 1))
    kv_heads = values.get("num_key_value_heads")
    return ModelConfig(
        **sizes,
        num_kv_heads=sizes["num_heads"]
        if kv_heads is None
        else _count(values, "num_key_value_heads"),
        seq_len=seq_len,
        rope_theta=_theta(values),
        norm_eps=_number(values.get("rms_norm_eps", _EPS), "rms_norm_eps"),
        bias=_bias(values, kind),
        qk_norm=kind == "qwen3",
        tied=bool(values.get("tie_word_embeddings", False)),
    )


def config_of(model: ModelConfig, dtype: str) -> dict[str, Any]:
    """The config.json of a model that Hugging Face has a class for.

    Raises: CheckpointError, naming what none of its classes does.
    """
    kind = "qwen3" if model.qk_norm else "llama"
    _check_exportable(model)
    values: dict[str, Any] = {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "dtype": dtype,
        "torch_dtype": dtype,
        "hidden_act": "silu",
        "head_dim": model.head_width,
        "num_key_value_heads": model.num_kv_heads,
        "max_position_embeddings": model.seq_len,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "attention_bias": model.bias,
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    values |= {key: getattr(model, name) for name, key in _SIZES.items()}
    return values | ({"mlp_bias": model.bias} if kind == "llama" else {})


def _kind(values: Values) -> str:
    kind = values.get("model_type")
    if isinstance(kind, str) and kind in _EXPERTS:
        raise CheckpointError(
            f"config.json: {_EXPERTS[kind]} has experts, which come with expert parallelism and "
            "are not there yet; use a llama or qwen3"
        )
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise CheckpointError(f"config.json: model_type = {kind!r} is unknown; use llama or qwen3")
    return kind


def _check(values: Values, head_width: int) -> None:
    head_dim = values.get("head_dim")
    if head_dim not in (None, head_width):
        raise CheckpointError(
            f"config.json: head_dim = {head_dim}, and heads are hidden_size / num_attention_heads "
            f"= {head_width} wide here; use a model where both are equal"
        )
    act = values.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise CheckpointError(
            f"config.json: hidden_act = {act!r} is unknown; use a model with silu"
        )
    layers = values.get("layer_types") or []
    full = ["full_attention"] * (len(layers) if isinstance(layers, list) else 0)
    if values.get("use_sliding_window") or layers != full:
        raise CheckpointError(
            "config.json: sliding-window attention is not there yet; use a model whose layers all "
            "see every position"
        )
    if values.get("quantization_config"):
        raise CheckpointError(
            "config.json: the weights are quantized; fetch those in bf16, fp16 or fp32"
        )


def _theta(values: Values) -> float:
    """Base of the rotary angles: of transformers 5 in `rope_parameters`, before it beside them."""
    theta = values.get("rope_theta")
    for key in ("rope_scaling", "rope_parameters"):
        told = values.get(key) or {}
        if not isinstance(told, dict):
            raise CheckpointError(f"config.json: {key} = {told!r} is no table; fetch it again")
        kind = told.get("rope_type", told.get("type", "default"))
        if kind != "default":
            raise CheckpointError(
                f"config.json: {key} is of type {kind!r}, and scaled rotary positions are not "
                "there yet; use a model without them"
            )
        theta = told.get("rope_theta", theta)
        if told.get("partial_rotary_factor", 1.0) != 1.0:
            raise CheckpointError(
                "config.json: partial_rotary_factor turns some channels only, which is not there "
                "yet; use a model that turns all"
            )
    return _number(_THETA if theta is None else theta, "rope_theta")


def _bias(values: Values, kind: str) -> bool:
    attention, mlp = bool(values.get("attention_bias")), bool(values.get("mlp_bias"))
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
    if model.bias and model.qk_norm:
        raise CheckpointError(
            "model.bias and model.qk_norm: neither Llama nor Qwen3 has both; export with --to dcp"
        )


def _count(values: Values, key: str) -> int:
    value = values.get(key)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"config.json: {key} = {value!r} is no whole number above 0")
    return value


def _number(value: Any, key: str) -> float:
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise CheckpointError(f"config.json: {key} = {value!r} is no number above 0")
    return float(value)
