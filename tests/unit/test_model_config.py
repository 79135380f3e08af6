import pytest

from remesh.parallel.errors import LayoutError
from remesh.parallel.model.config import ModelConfig, num_parameters, parameter_shapes

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
        ({"num_heads": 5}, "num_heads=5 .* width=128 .* use one of 1, 2, 4, 8, 16, 32, 64"),
        ({"num_heads": 128}, "num_heads=128 .* even width; use one of 1, 2, 4, 8, 16, 32, 64"),
        ({"num_kv_heads": 3}, "num_kv_heads=3 does not divide num_heads=4; use one of 1, 2, 4"),
        ({"num_kv_heads": 8}, "num_kv_heads=8 does not divide num_heads=4; use one of 1, 2, 4"),
        ({"width": 127}, "width=127 is odd"),
        ({"num_layers": 0}, "num_layers=0 is not positive"),
        ({"norm_eps": float("nan")}, "norm_eps=nan is not positive"),
        ({"width": -1, "seq_len": 0}, "width=-1 is not positive.*; seq_len=0 is not positive"),
    ],
)
def test_sizes_that_do_not_fit_are_named_with_those_that_do(values, message):
    with pytest.raises(LayoutError, match=message):
        ModelConfig(**{**TINY, **values})
