"""Several copies of a model in one checkpoint, and names that wrappers have lengthened."""

import pytest

from remesh.parallel.files.convert_names import hugging_face_name, names_in
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes

SIZES = {"num_layers": 2, "width": 48, "num_heads": 4, "num_kv_heads": 2, "ffn_width": 80}
WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def model(**more):
    return ModelConfig(**{**SIZES, "vocab_size": 61, "seq_len": 20, **more})


def ours(config=None):
    return list(parameter_shapes(config or model()))


def theirs(config=None):
    return [hugging_face_name(name) for name in ours(config)]


def copies(*prefixes, names=None):
    return {prefix + name for prefix in prefixes for name in names or theirs()}


@pytest.mark.parametrize(
    "prefixes",
    [
        ("model.", "ema."),
        ("state_dict.", "exp_avg."),
        ("student.", "teacher."),
        ("actor.", "ref."),
        ("", "ema."),
        ("", "module."),
        ("", "model."),
    ],
)
@pytest.mark.parametrize("named", [ours, theirs])
def test_several_copies_are_refused_with_the_keys_that_choose_one(prefixes, named):
    """inputs A2."""
    found = copies(*prefixes, names=named())
    with pytest.raises(CheckpointError) as caught:
        names_in(found, model())
    for prefix in prefixes:
        assert f"--key {prefix.rstrip('.') or repr('')}" in str(caught.value)
        chosen = names_in(found, model(), prefix.rstrip(".")).names
        assert chosen == dict(zip(ours(), [prefix + n for n in named()], strict=True))


def test_copies_under_either_names_are_copies_too():
    """inputs A2."""
    found = copies("model.", names=ours()) | copies("ema.")
    with pytest.raises(CheckpointError, match=r"--key ema or --key model"):
        names_in(found, model())
    assert names_in(found, model(), "ema").names["norm.weight"] == "ema.model.norm.weight"


def test_a_key_that_is_not_there_is_told_with_those_that_are():
    """inputs A2."""
    with pytest.raises(CheckpointError, match=r"--key emma: .*--key ema or --key model"):
        names_in(copies("model.", "ema."), model(), "emma")
    with pytest.raises(CheckpointError, match=r"--key ema: .*use --key ''"):
        names_in(copies(""), model(), "ema")


def test_a_copy_that_is_not_whole_is_still_a_copy():
    """inputs A2: which of the two was meant is not for us to guess."""
    found = copies("model.") | {n for n in copies("ema.") if "layers.1." not in n}
    with pytest.raises(CheckpointError, match=r"--key ema or --key model"):
        names_in(found, model(num_layers=1))


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("named", [ours, theirs])
def test_what_wrappers_put_into_names_is_passed_over(wrapper, named):
    """inputs C1."""
    within = [
        name.replace(".layers.0.", f".layers.0.{wrapper}.")
        .replace("layers.1.", f"{wrapper}.layers.1.{wrapper}.{wrapper}.")
        .replace("embed_tokens", f"{wrapper}.embed_tokens")
        .replace("embedding.", f"embedding.{wrapper}.")
        for name in named()
    ]
    assert within != named()
    for prefix in ("", f"{wrapper}.", f"model.{wrapper}."):
        found = [prefix + name for name in within]
        assert names_in(found, model()).names == dict(zip(ours(), found, strict=True))


def test_an_infix_of_nobody_that_is_known_is_named():
    """inputs C1: nothing is missing."""
    found = [name.replace("layers.0.", "layers.0.shell.inner.") for name in theirs()]
    with pytest.raises(CheckpointError) as caught:
        names_in(found, model())
    assert "model.layers.0.shell.inner.input_layernorm.weight" in str(caught.value)
    assert "'shell.inner.'" in str(caught.value)
    assert "missing" not in str(caught.value)
    with pytest.raises(CheckpointError, match=r"'base_layer\.'"):
        names_in([n.replace("q_proj", "q_proj.base_layer") for n in theirs()], model())
    with pytest.raises(CheckpointError, match=r"'shell\.'"):
        names_in([n.replace("embed", "shell.embed") for n in theirs()], model())


def test_one_name_with_and_without_a_wrapper_is_refused():
    """inputs C1: of two tensors for one place none is taken."""
    wrapped = "model.layers.0.module.input_layernorm.weight"
    double = "model.layers.0._orig_mod.input_layernorm.weight"
    found = [n for n in theirs() if n != "model.layers.0.input_layernorm.weight"]
    with pytest.raises(CheckpointError) as caught:
        names_in([*found, wrapped, double], model())
    assert wrapped in str(caught.value)
    assert double in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
@pytest.mark.parametrize("named", [ours, theirs])
def test_the_head_beside_a_tied_model_is_found_where_its_copy_is(prefix, named):
    """inputs A2, inputs C1, cases B051: else nobody sees that it is another."""
    found = copies(prefix, names=named()) | copies("ema.", names=named())
    key = prefix.rstrip(".")
    head = named()[-1]
    assert names_in(found, model(tied=True), key).head == prefix + head
    without = found - {prefix + head}
    assert names_in(without, model(tied=True), key).head is None


def test_more_layers_than_there_are_tensors_are_refused_before_any_is_named():
    """parallel A8, security A3: shapes were built for each layer that a config.json claims."""
    deep = model(num_layers=2**20)
    with pytest.raises(CheckpointError, match=r"1048576 layers, .* 21 tensors"):
        names_in(theirs(), deep)
