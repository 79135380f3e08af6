import pytest
from sized import num_parameters

from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.model_config import (
    ModelConfig,
    block_parameters,
    parameter_shapes,
)

TINY = {
    "num_layers": 4,
    "width": 128,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_width": 352,
    "vocab_size": 256,
    "seq_len": 128,
}


def test_sizes_that_follow():
    config = ModelConfig(**TINY)
    assert (config.head_width, config.kv_width) == (32, 64)
    shapes = parameter_shapes(config)
    assert shapes["layers.3.attention.key.weight"] == (64, 128)
    assert len(shapes) == 4 * 9 + 3
    assert num_parameters(config) == 803_968


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_heads": 5}, "num_heads=5 .* width=128 .* use one of 2, 4, 8, 16, 32, 64, or"),
        ({"num_heads": 128}, "num_heads=128 .* odd width.*; use one of 2, 4, 8, 16, 32, 64, or"),
        ({"num_kv_heads": 3}, "num_kv_heads=3 does not divide num_heads=4; use one of 1, 2, 4"),
        ({"num_kv_heads": 8}, "num_kv_heads=8 does not divide num_heads=4; use one of 1, 2, 4"),
        ({"width": 127}, "num_heads=4 does not cut width=127 .*; use one of 120, 128 as"),
        ({"num_layers": 0}, "num_layers=0 is not positive"),
        ({"norm_eps": float("nan")}, "norm_eps=nan is not positive"),
        ({"norm": "batch"}, "norm=batch is unknown; use rms or layer"),
        ({"positions": "alibi"}, "positions=alibi is unknown; use rope or learned"),
        ({"activation": "relu"}, "activation=relu is unknown; use swiglu or gelu"),
        ({"tied": "no"}, "tied=no is unknown; use false or true"),
        ({"num_heads": 5, "positions": "learned"}, "num_heads=5 .* equal heads; use one of 2, 4,"),
        ({"width": -1, "seq_len": 0}, "width=-1 is not positive.*; seq_len=0 is not positive"),
    ],
)
def test_sizes_that_do_not_fit_are_named_with_those_that_do(values, message):
    with pytest.raises(LayoutError, match=message):
        ModelConfig(**{**TINY, **values})


def test_heads_of_odd_width_are_for_learned_positions():
    with pytest.raises(LayoutError, match="odd width"):
        ModelConfig(**{**TINY, "num_heads": 128})
    assert ModelConfig(**{**TINY, "num_heads": 128}, positions="learned").head_width == 1


def test_names_of_a_model_with_everything():
    config = ModelConfig(
        **TINY, norm="layer", positions="learned", activation="gelu", bias=True, qk_norm=True
    )
    blocks = block_parameters(config)
    assert list(blocks) == ["embedding", "layers.0", "layers.1", "layers.2", "layers.3", "head"]
    assert blocks["embedding"] == ("embedding.weight", "positions.weight")
    assert [name.removeprefix("layers.3.") for name in blocks["layers.3"]] == [
        "attention_norm.weight",
        "attention_norm.bias",
        "attention.query.weight",
        "attention.query.bias",
        "attention.key.weight",
        "attention.key.bias",
        "attention.value.weight",
        "attention.value.bias",
        "attention.output.weight",
        "attention.output.bias",
        "attention.query_norm.weight",
        "attention.key_norm.weight",
        "ffn_norm.weight",
        "ffn_norm.bias",
        "ffn.up.weight",
        "ffn.up.bias",
        "ffn.down.weight",
        "ffn.down.bias",
    ]
    assert blocks["head"] == ("norm.weight", "norm.bias", "head.weight")


@pytest.mark.parametrize("tied", [False, True])
def test_each_parameter_belongs_to_one_block(tied):
    config = ModelConfig(**TINY, tied=tied)
    names = [name for block in block_parameters(config).values() for name in block]
    assert names == list(parameter_shapes(config))
    assert ("head.weight" in names) is not tied


def test_only_what_is_a_matrix_decays():
    """Norm weights and biases are of one dimension, which is what the optimizer goes by."""
    config = ModelConfig(
        **{**TINY, "num_layers": 1}, norm="layer", positions="learned", bias=True, qk_norm=True
    )
    decayed = [name for name, shape in parameter_shapes(config).items() if len(shape) > 1]
    assert decayed == [
        "embedding.weight",
        "positions.weight",
        "layers.0.attention.query.weight",
        "layers.0.attention.key.weight",
        "layers.0.attention.value.weight",
        "layers.0.attention.output.weight",
        "layers.0.ffn.gate.weight",
        "layers.0.ffn.up.weight",
        "layers.0.ffn.down.weight",
        "head.weight",
    ]
