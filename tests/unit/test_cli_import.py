"""`remesh checkpoint import` of folders as others leave them, and what `export` knows of them."""

import json
from pathlib import Path

import foreign_files
import pytest
import torch
from foreign_files import dcp_folder, hf_folder, values
from small_job import JOB

import remesh.actors.checkpoints.exporting
import remesh.actors.checkpoints.importing
import remesh.parallel.step.engine  # noqa: F401 - at collection, not within a test's budget
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.old_runs import set_aside
from remesh.actors.storage.file_storage import LocalStorage
from remesh.cli.main import main
from remesh.parallel.files.convert_names import hugging_face_name
from remesh.parallel.state.checkpoint import committed
from remesh.parallel.state.reading import read


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    Path("text.txt").write_text("to be or not to be, that is the question\n" * 20)


def told(capsys, *arguments, code=0):
    assert main(["checkpoint", *arguments]) == code
    captured = capsys.readouterr()
    assert not code or captured.err.count("\n") == 1
    return captured.err if code else captured.out


def imported_state():
    storage = LocalStorage(Path("runs/small"))
    (ref,) = committed(storage)
    return read(storage, ref)


def same(state, expected):
    return all(torch.equal(state[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("form", ["hf", "dcp"])
def test_a_key_chooses_among_copies_and_without_one_nothing_is_imported(capsys, form):
    """inputs A2."""
    right, other = values(), values(0.0)
    if form == "dcp":
        tensors = {f"model.{n}": t for n, t in other.items()}
        dcp_folder(Path("in"), tensors | {f"ema.{n}": t for n, t in right.items()})
    else:
        from safetensors.torch import save_file  # noqa: PLC0415

        hf_folder(Path("in"), right)
        tensors = {f"model.{hugging_face_name(n)}": t for n, t in other.items()}
        tensors |= {f"ema.{hugging_face_name(n)}": t for n, t in right.items()}
        save_file(tensors, "in/model.safetensors")
    error = told(capsys, "import", "--from", form, "in", "job.toml", code=2)
    assert "in: " in error
    assert "--key ema or --key model" in error
    assert not Path("runs/small").exists()
    told(capsys, "import", "--from", form, "in", "job.toml", "--key", "ema")
    assert same(imported_state(), right)


WORDS = {"max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": [2, 7]}


def test_an_export_keeps_what_the_source_said_of_its_use(capsys):
    """inputs A7."""
    hf_folder(Path("in"), values(), **WORDS, pad_token_id=0, initializer_range=0.5)
    told(capsys, "import", "--from", "hf", "in", "job.toml")
    out = told(capsys, "export", "runs/small", "--to", "hf", "out")
    written = json.loads(Path("out/config.json").read_text())
    assert {**WORDS, "pad_token_id": 0}.items() <= written.items()
    assert "max_position_embeddings = 4096" in out
    assert "eos_token_id = [2, 7]" in out
    assert "as the imported model said" in out


def test_an_export_says_what_it_wrote_where_nothing_is_known(capsys):
    """inputs A7."""
    dcp_folder(Path("in"), values())
    told(capsys, "import", "--from", "dcp", "in", "job.toml")
    out = told(capsys, "export", "runs/small", "--to", "hf", "out")
    assert json.loads(Path("out/config.json").read_text())["max_position_embeddings"] == 16
    assert "max_position_embeddings = 16" in out
    assert "no special tokens" in out


def test_a_run_that_is_trained_on_longer_sequences_has_their_length(capsys):
    """inputs A7."""
    hf_folder(Path("in"), values(), max_position_embeddings=8)
    told(capsys, "import", "--from", "hf", "in", "job.toml")
    out = told(capsys, "export", "runs/small", "--to", "hf", "out")
    assert json.loads(Path("out/config.json").read_text())["max_position_embeddings"] == 16
    assert "max_position_embeddings = 16" in out


def test_words_of_a_source_are_forgotten_with_its_run_and_told_when_damaged(capsys):
    """inputs A7: a fresh run in the same place is of no source; a damaged record is no source."""
    hf_folder(Path("in"), values(), **WORDS)
    told(capsys, "import", "--from", "hf", "in", "job.toml")
    (record,) = Path("runs/small").glob("*imported*")
    record.write_text("[" * 10_000)
    error = told(capsys, "export", "runs/small", "--to", "hf", "out", code=2)
    assert record.name in error
    set_aside(RunFolder(Path("runs/small")).places)
    assert not record.exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"max_position_embeddings": -1}, "max_position_embeddings = -1"),
        ({"max_position_embeddings": 1e9}, "max_position_embeddings = 1000000000.0"),
        ({"eos_token_id": "</s>"}, "eos_token_id = '</s>'"),
        ({"bos_token_id": [[1]]}, "bos_token_id = [[1]]"),
        ({"pad_token_id": list(range(2000))}, "pad_token_id = [0, 1"),
    ],
)
def test_words_of_a_source_that_cannot_be_are_refused(capsys, words, text):
    """inputs A7."""
    hf_folder(Path("in"), values(), **words)
    error = told(capsys, "import", "--from", "hf", "in", "job.toml", code=2)
    assert text in error
    assert len(error) < 400


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("form", ["hf", "dcp"])
def test_weights_that_are_not_finite_are_refused_by_the_tensors_name(capsys, form, number):
    """parallel A5: such a run is one of nothing but skipped steps."""
    tensors = values()
    tensors["layers.0.ffn.up.weight"][3, 5] = number
    make = {"hf": hf_folder, "dcp": dcp_folder}[form]
    make(Path("in"), tensors)
    error = told(capsys, "import", "--from", form, "in", "job.toml", code=2)
    names = {"hf": "model.layers.0.mlp.up_proj.weight", "dcp": "layers.0.ffn.up.weight"}
    assert names[form] in error
    assert f"{number} at [3, 5]" in error
    assert committed(LocalStorage(Path("runs/small"))) == []


def test_weights_that_fp32_cannot_hold_are_refused_too(capsys):
    """parallel A5: finite where they lie, and infinite in the run."""
    tensors = values()
    tensors["norm.weight"] = tensors["norm.weight"].double()
    tensors["norm.weight"][2] = 1e300
    dcp_folder_of_doubles(Path("in"), tensors)
    error = told(capsys, "import", "--from", "dcp", "in", "job.toml", code=2)
    assert "norm.weight" in error
    assert "inf at [2]" in error


def dcp_folder_of_doubles(folder, tensors):
    metadata = dcp_folder(folder, tensors)
    told_of = metadata.state_dict_metadata["norm.weight"]
    told_of.properties.dtype = foreign_files.Global(name="torch.float64")
    (folder / ".metadata").write_bytes(foreign_files.pickled(metadata))


def test_a_tied_model_that_is_not_finite_is_told_as_that(capsys):
    """parallel A5: it was told that its head is not the embedding, since NaN is not itself."""
    tensors = values()
    tensors["embedding.weight"][7, 1] = float("nan")
    tensors["head.weight"] = tensors["embedding.weight"].clone()
    dcp_folder(Path("in"), tensors)
    arguments = ["import", "--from", "dcp", "in", "job.toml", "--set", "model.tied=true"]
    assert "embedding.weight" in (error := told(capsys, *arguments, code=2))
    assert "nan at [7, 1]" in error


def test_an_embedding_that_no_job_can_have_is_refused_by_its_rows(capsys):
    """parallel A6: without a config.json the rows of the embedding tell it."""
    tensors = values() | {n: torch.zeros(70_000, 8) for n in ("embedding.weight", "head.weight")}
    dcp_folder(Path("in"), tensors)
    error = told(capsys, "import", "--from", "dcp", "in", "job.toml", code=2)
    assert "70000" in error
    assert "65,536" in error
