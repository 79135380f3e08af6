"""Tiny Llama, Qwen3 and Mixtral models, made, saved and computed by transformers: the oracle."""

import logging

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

transformers.utils.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)

SIZES = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "vocab_size": 61,
    "max_position_embeddings": 20,
    "initializer_range": 0.2,
}


def llama(**more):
    rope = {"rope_type": "default", "rope_theta": 50000.0}
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope, **more))


def qwen3(**more):
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, rms_norm_eps=1e-5, **more))


def mixtral(**more):
    rope = {"rope_type": "default", "rope_theta": 50000.0}
    config = MixtralConfig(
        **SIZES, rope_parameters=rope, num_local_experts=4, num_experts_per_tok=2, **more
    )
    return MixtralForCausalLM(config)


def make(kind, tied, *, biased=False):
    """A model of random weights, norms and biases included."""
    torch.manual_seed(11)
    more = {"attention_bias": True, "mlp_bias": True} if biased else {}
    model = {"llama": llama, "qwen3": qwen3, "mixtral": mixtral}[kind](
        tie_word_embeddings=tied, **more
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        if kind == "mixtral":
            _skew(model)
    return model


def _skew(model):
    """All tokens go to the first expert of each layer, and none to the last one."""
    model.model.embed_tokens.weight.add_(1.0)
    for layer in model.model.layers:
        layer.mlp.gate.weight[0].add_(0.5)
        layer.mlp.gate.weight[-1].sub_(0.5)


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder)


def logits_of(model, tokens_BT):
    """In fp64, which the model is from then on: what a program rounds is its own."""
    model.set_experts_implementation("eager")  # the grouped product knows no fp64
    with torch.no_grad():
        return model.double().eval()(torch.from_numpy(tokens_BT)).logits.numpy()
