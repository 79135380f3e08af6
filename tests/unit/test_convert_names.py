import pytest

from remesh.parallel.files.convert_config import config_of, model_of
from remesh.parallel.files.convert_names import hugging_face_name, names_in
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes

SIZES = {
    "num_layers": 2,
    "width": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_width": 80,
    "vocab_size": 61,
    "seq_len": 20,
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "vocab_size": 61,
}
QWEN3 = {**LLAMA, "model_type": "qwen3"}


def model(**more):
    return ModelConfig(**{**SIZES, **more})


@pytest.mark.parametrize(
    "config",
    [
        model(rope_theta=500000.0, norm_eps=1e-6),
        model(tied=True, num_kv_heads=4),
        model(qk_norm=True),
        model(bias=True),
        model(qk_norm=True, tied=True),
        model(num_experts=8, top_k=3, rope_theta=1e6),
    ],
)
def test_a_model_written_as_config_json_is_read_as_the_same(config):
    assert model_of(config_of(config, "float32"), SIZES["seq_len"]) == config


def test_what_a_config_leaves_out_is_what_transformers_takes_for_it():
    found = model_of(LLAMA, 8)
    assert found == model(seq_len=8, num_kv_heads=4, norm_eps=1e-6)
    mixtral = {**LLAMA, "model_type": "mixtral", "num_attention_heads": 8}
    assert model_of(mixtral, 8) == model(
        seq_len=8, num_heads=8, num_kv_heads=8, rope_theta=1e6, num_experts=8, top_k=2
    )
    assert model_of({**QWEN3, "rope_theta": 1e6, "rope_scaling": None}, 8).rope_theta == 1e6


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"model_type": "qwen3_moe"}, "Qwen3-MoE has other experts than Mixtral"),
        ({"model_type": "mixtral", "sliding_window": 4096}, "sliding-window attention"),
        ({"model_type": "mixtral", "num_local_experts": 0}, "num_local_experts = 0 is no whole"),
        ({"model_type": "gpt2"}, "model_type = 'gpt2' is unknown; use llama, qwen3 or mixtral"),
        ({"model_type": ["llama"]}, "is unknown; use llama, qwen3 or mixtral"),
        ({"head_dim": 128}, "head_dim = 128, and heads are hidden_size / num_attention_heads = 12"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling is of type 'llama3'",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling is of type 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters is of type 'yarn'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": [1]}, "rope_parameters = [1] is no table"),
        ({"layer_types": 5}, "sliding-window attention is not there yet"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is unknown"),
        ({"use_sliding_window": True}, "sliding-window attention is not there yet"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window attention"),
        ({"quantization_config": {"bits": 4}}, "the weights are quantized"),
        ({"attention_bias": True}, "attention_bias = True, mlp_bias = False"),
        ({"hidden_size": "48"}, "hidden_size = '48' is no whole number above 0"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0 is no whole number above 0"),
        ({"num_key_value_heads": True}, "num_key_value_heads = True is no whole number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan is no number above 0"),
        ({"rope_theta": "big"}, "rope_theta = 'big' is no number above 0"),
        (
            {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6}},
            "rope_theta is 500000.0 and 1000000.0 in different places",
        ),
    ],
)
def test_what_this_model_cannot_do_is_refused_by_name(values, text):
    with pytest.raises(CheckpointError) as caught:
        model_of({**LLAMA, **values}, 20)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"norm": "layer"}, "model.norm = layer"),
        ({"positions": "learned"}, "model.positions = learned"),
        ({"activation": "gelu"}, "model.activation = gelu"),
        ({"bias": True, "qk_norm": True}, "model.bias and model.qk_norm"),
        ({"num_experts": 4, "num_shared_experts": 1}, "model.num_shared_experts = 1: a Mixtral"),
        ({"num_experts": 4, "num_dense_layers": 1}, "model.num_dense_layers = 1: a Mixtral"),
        ({"num_experts": 4, "score": "sigmoid"}, "model.score = sigmoid: a Mixtral"),
        ({"num_experts": 4, "normed_scores": False}, "model.normed_scores = False: a Mixtral"),
        ({"num_experts": 4, "balanced": True}, "model.balanced = True: a Mixtral"),
        ({"num_experts": 4, "capacity_factor": 2.0}, "model.capacity_factor = 2.0: a Mixtral"),
        ({"num_experts": 4, "bias": True}, "model.bias = True: a Mixtral"),
        ({"num_experts": 4, "qk_norm": True}, "model.qk_norm = True: a Mixtral"),
    ],
)
def test_a_model_that_hugging_face_has_no_class_for_is_not_written(more, text):
    with pytest.raises(CheckpointError, match="export with --to dcp") as caught:
        config_of(model(**more), "float32")
    assert text in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "model.", "module.model."])
@pytest.mark.parametrize("named", [hugging_face_name, str])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_found_under_either_names_behind_any_prefix(prefix, named, tied):
    config = model(qk_norm=True, tied=tied)
    expected = {name: prefix + named(name) for name in parameter_shapes(config)}
    others = ["step", "optimizer.state.norm.weight.exp_avg", "lm_head.weight"]
    tables = [f"{prefix}model.layers.0.self_attn.rotary_emb.inv_freq"]
    assert names_in([*expected.values(), *others, *tables], config).names == expected


def test_names_that_are_missing_too_many_or_of_somebody_else_are_told():
    names = [hugging_face_name(name) for name in parameter_shapes(model())]
    with pytest.raises(CheckpointError, match=r"self_attn.q_norm.weight is missing, and 3 more"):
        names_in(names, model(qk_norm=True))
    with pytest.raises(CheckpointError, match=r"layers.1.*is no part of this model, and 8 more"):
        names_in(names, model(num_layers=1))
    with pytest.raises(CheckpointError, match=r"but there is tok_embeddings.weight; save"):
        names_in(["tok_embeddings.weight"], model())


def test_each_expert_of_a_mixtral_is_found_by_its_own_name():
    config = model(num_experts=3, num_layers=1)
    names = names_in([*_mixtral_names(3)], config).names
    assert len(names) == 9 + 1 + 3 * 3
    layer = "model.layers.0.block_sparse_moe"
    assert names["layers.0.ffn.router.weight"] == f"{layer}.gate.weight"
    assert names["layers.0.ffn.experts.up.weight#2"] == f"{layer}.experts.2.w3.weight"
    with pytest.raises(CheckpointError, match=r"experts.2.w1.weight is missing, and 2 more"):
        names_in([*_mixtral_names(2)], config)
    with pytest.raises(CheckpointError, match="has 1000 experts in all, and the files have"):
        names_in([*_mixtral_names(3)], model(num_experts=1000, num_layers=1))


def _mixtral_names(num_experts):
    dense = parameter_shapes(model(num_layers=1))
    yield from (hugging_face_name(name) for name in dense if ".ffn." not in name)
    layer = "model.layers.0.block_sparse_moe"
    yield f"{layer}.gate.weight"
    for expert in range(num_experts):
        yield from (f"{layer}.experts.{expert}.w{number}.weight" for number in (1, 2, 3))
