"""Against transformers: its models computed here, and models trained here computed there."""

import foreign_models
import numpy as np
import pytest
import torch
from converted_ranks import (
    AFTER,
    SEQ_LEN,
    TOKENS_BT,
    VOCABULARY,
    compute,
    put_together,
    train_and_save,
)
from manifests import checkpoint_manifest
from small_engine import zero

from remesh.actors.checkpoints.exporting import export
from remesh.actors.checkpoints.looking import find
from remesh.actors.storage.file_storage import LocalStorage
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.files.convert import read_model
from remesh.parallel.plan.layout import Layout
from remesh.parallel.spec import ZeroSpec
from remesh.parallel.state.checkpoint import commit

ZERO3 = zero(3)
# Of logits up to 5 in fp32; what transformers computes in fp32 is 1.4e-5 from its own fp64.
WITHIN = 2e-5
LAYOUTS = {
    "tp2": (Layout(tp=2), ZeroSpec()),
    "zero3": (Layout(dp=2), ZERO3),
    "tp2 zero3": (Layout(dp=2, tp=2), ZERO3),
}
MODELS = {
    "llama": ("llama", False, False),
    "tied llama": ("llama", True, False),
    "biased llama": ("llama", False, True),
    "qwen3": ("qwen3", False, False),
    "tied qwen3": ("qwen3", True, False),
    "mixtral": ("mixtral", False, False),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folder and logits of each model; the untied ones lie in many files."""
    made = {}
    for name, (kind, tied, biased) in MODELS.items():
        folder = tmp_path_factory.mktemp("model")
        model = foreign_models.make(kind, tied, biased=biased)
        model.save_pretrained(folder, max_shard_size="1GB" if tied else "20KB")
        made[name] = (folder, foreign_models.logits_of(model, TOKENS_BT))
    return made


@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, layout) for name in MODELS for layout in ("tp2", "zero3")]
    + [("tied qwen3", "tp2 zero3")],
)
def test_a_model_of_transformers_has_the_same_logits_here(pool, models, name, layout):
    folder, expected = models[name]
    place, zero = LAYOUTS[layout]
    results = pool.run(compute, place.world_size, folder, place, zero)
    found = put_together([share for share, _, _ in results[: place.tp]], VOCABULARY)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < WITHIN
    for rank in range(place.tp, place.world_size):
        assert np.array_equal(results[rank][0], results[rank - place.tp][0])


def test_a_rank_reads_its_own_part_only(pool, models):
    folder, _ = models["qwen3"]
    for _, read_bytes, held_bytes in pool.run(compute, 2, folder, *LAYOUTS["zero3"]):
        assert read_bytes <= 1.01 * held_bytes
    tensors = pool.run(compute, 2, folder, *LAYOUTS["tp2"])
    # All rows of the two matrices a layer that are cut by columns, half of everything else.
    columns_bytes = 4 * 2 * (48 * 48 + 48 * 80)
    for _, read_bytes, held_bytes in tensors:
        assert read_bytes <= 1.01 * held_bytes + columns_bytes / 2


def commit_model(run, files, config):
    """As a run commits it: the manifest tells the model by the keys of the job file."""
    values = {name: getattr(config, name) for name in config.__dataclass_fields__}
    del values["seq_len"]
    fingerprint = {f"model.{name}": value for name, value in values.items()}
    fingerprint["train.seq_len"] = SEQ_LEN
    manifest = checkpoint_manifest(AFTER, files, position=12, fingerprint=fingerprint)
    commit(LocalStorage(run), manifest)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama", "tp2 zero3"),
        ("biased llama", "tp2"),
        ("tied qwen3", "zero3"),
        ("qwen3", "tp2"),
        ("mixtral", "tp2 zero3"),
    ],
)
def test_a_model_trained_here_has_the_same_logits_in_transformers(
    pool, models, tmp_path, name, layout
):
    folder, before = models[name]
    place, zero = LAYOUTS[layout]
    run, out = tmp_path / "run", tmp_path / "out"
    results = pool.run(train_and_save, place.world_size, folder, place, zero, run)
    commit_model(run, [file for _, file, _ in results], read_model(LocalStorage(folder), SEQ_LEN))
    export(find(f"{run}/3"), "hf", str(out), "float32", pytest.fail)
    here = put_together([share for share, _, _ in results[: place.tp]], VOCABULARY)
    there = foreign_models.logits_of(foreign_models.loaded(out), TOKENS_BT)
    assert np.abs(here - there).max() < WITHIN
    assert np.abs(here - before).max() > 1e-2


def test_what_cannot_be_exported_is_refused_in_a_line(pool, models, tmp_path):
    folder, _ = models["tied qwen3"]
    run, file = tmp_path / "run", tmp_path / "file"
    results = pool.run(train_and_save, 2, folder, *LAYOUTS["tp2"], run)
    commit_model(run, [told for _, told, _ in results], read_model(LocalStorage(folder), SEQ_LEN))
    file.touch()
    for form in ("hf", "dcp"):
        with pytest.raises(UserError, match="file: cannot be written: Not a directory; make room"):
            export(find(str(run)), form, str(file), "float32", pytest.fail)
    with pytest.raises(UserError, match=r"--dtype is for --to hf: .* leave it out"):
        export(find(str(run)), "dcp", str(tmp_path / "out"), "bfloat16", pytest.fail)


def test_what_is_rounded_on_export_is_rounded_once(pool, models, tmp_path):
    folder, _ = models["tied qwen3"]
    run, out = tmp_path / "run", tmp_path / "out"
    results = pool.run(train_and_save, 2, folder, *LAYOUTS["tp2"], run)
    commit_model(run, [file for _, file, _ in results], read_model(LocalStorage(folder), SEQ_LEN))
    export(find(str(run)), "hf", str(out / "bf16"), "bfloat16", pytest.fail)
    export(find(str(run)), "hf", str(out / "fp32"), "float32", pytest.fail)
    rounded = foreign_models.loaded(out / "bf16").state_dict()
    for key, value in foreign_models.loaded(out / "fp32").state_dict().items():
        assert rounded[key].dtype == torch.bfloat16
        assert torch.equal(rounded[key], value.bfloat16())
