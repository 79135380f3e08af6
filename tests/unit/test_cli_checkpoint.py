"""`remesh checkpoint` on small runs that are written here."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from manifests import checkpoint_manifest
from small_job import JOB
from whole_shards import encode_shard

import remesh.actors.checkpoints.exporting
import remesh.actors.checkpoints.importing
import remesh.parallel.step.engine  # noqa: F401 - at collection, not within a test's budget
from remesh.actors.run.folder import RunFolder
from remesh.actors.storage.file_storage import LocalStorage
from remesh.cli.main import main
from remesh.orchestrator.job.job import load_job
from remesh.parallel.files.convert import write_model
from remesh.parallel.files.convert_config import config_of
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.state.checkpoint import commit, committed, read_manifest
from remesh.parallel.state.reading import read
from remesh.parallel.state.root_manifest import (
    CheckpointRef,
    shard_file_name,
)
from remesh.parallel.state.shards import write_shard

MODEL = ModelConfig(
    num_layers=1, width=8, num_heads=2, num_kv_heads=1, ffn_width=12, vocab_size=256, seq_len=16
)


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A job file, its text, and a run of it with checkpoints at steps 2 and 4."""
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    Path("text.txt").write_text("to be or not to be, that is the question\n" * 20)
    for ref in (CheckpointRef(step=2, generation=1), CheckpointRef(step=4, generation=3)):
        save(LocalStorage(Path("runs/small")), ref)


def weights(number=1.0):
    generator = torch.Generator().manual_seed(2)
    shapes = parameter_shapes(MODEL)
    return {
        name: torch.randn(shape, generator=generator) * number for name, shape in shapes.items()
    }


def save(storage, ref):
    tensors = weights(ref.step)
    tensors |= {
        f"{moment}.{n}": t for moment in ("exp_avg", "exp_avg_sq") for n, t in weights().items()
    }
    tensors["num_updates"] = torch.tensor([ref.step])
    path = f"{ref.name}/{shard_file_name(0, 1)}"
    file = write_shard(storage, path, encode_shard(tensors, ref))
    manifest = checkpoint_manifest(
        ref,
        [file],
        position=2 * ref.step,
        fingerprint=load_job(Path("job.toml")).fingerprint("d"),
        bit_key="tp=1",
        created_by={"remesh": "0"},
        metrics={"loss": 2.5},
    )
    commit(storage, manifest)


def model_files(config=MODEL):
    """The model in Hugging Face's files."""
    values = config_of(config, "float32")
    write_model(
        LocalStorage(Path("hf")), config, lambda want: {x: weights()[x.name] for x in want}, values
    )


def told(capsys, *arguments, code=0):
    assert main(["checkpoint", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_ls_lists_a_runs_checkpoints_newest_first(capsys):
    out = told(capsys, "ls", "runs/small")
    assert re.findall(r"step-\d+\.gen-\d", out) == ["step-00000004.gen-3", "step-00000002.gen-1"]
    rows = json.loads(told(capsys, "ls", "job.toml", "--json"))["checkpoints"]
    assert [(row["step"], row["sequences"], row["loss"]) for row in rows] == [
        (4, 8, 2.5),
        (2, 4, 2.5),
    ]
    assert "step-00000004.gen-3.start-0" in told(
        capsys, "ls", f"file://{Path('runs/small').absolute()}"
    )


@pytest.mark.parametrize("target", ["runs/small/2", "runs/small/step-00000002.gen-1.start-0"])
def test_show_tells_all_of_one_checkpoint(capsys, target):
    shown = json.loads(told(capsys, "show", target, "--json"))
    assert (shown["step"], shown["sequences"], shown["metrics"]) == (2, 4, {"loss": 2.5})
    assert shown["job"]["model.width"] == 8
    assert [file["name"] for file in shown["in_files"]] == ["rank-0-of-1.safetensors"]
    rows = {row["name"]: row for row in shown["tensors_by_their_fragments"]}
    assert rows.keys() == {*parameter_shapes(MODEL), "num_updates"}
    assert rows["head.weight"] == {
        "name": "head.weight",
        "shape": "256x8 float32",
        "fragments": 1,
        "exp_avg": 1,
        "exp_avg_sq": 1,
    }
    out = told(capsys, "show", target)
    assert "rank-0-of-1.safetensors" in out
    assert "layers.0.attention.query.weight" in out


def test_show_names_the_keys_of_a_job_as_a_job_file_does(capsys):
    """user 22: what is shown can be pasted."""
    out = told(capsys, "show", "runs/small/2")
    assert "model.num_kv_heads=1" in out
    assert not re.search(r"[a-z] [a-z]+=", out)


def test_what_is_damaged_is_told_beside_what_is_not(capsys):
    path = Path("runs/small/step-00000004.gen-3.start-0/manifest.json")
    path.write_text(path.read_text().replace('"d"', '"e"'))
    out = told(capsys, "ls", "runs/small")
    assert "step-00000004.gen-3.start-0 cannot be read: manifest.json: " in out
    assert "step-00000002.gen-1.start-0" in out
    assert main(["checkpoint", "verify", "runs/small"]) == 2
    captured = capsys.readouterr()
    assert re.findall(r"gen-(\d).start-0 is whole", captured.out) == ["1"]
    assert "step-00000004.gen-3.start-0 cannot be read" in captured.err


def test_a_job_file_leads_to_where_the_checkpoints_lie(capsys):
    place = Path("elsewhere").absolute()
    save(LocalStorage(place), CheckpointRef(step=3, generation=1))
    Path("job.toml").write_text(f'{JOB}\n[checkpoint]\nurl = "file://{place}"\n')
    for target in ("job.toml", "job.toml/3"):
        assert json.loads(told(capsys, "show", target, "--json"))["step"] == 3


def test_show_without_a_step_is_the_newest(capsys):
    assert json.loads(told(capsys, "show", "runs/small", "--json"))["step"] == 4


def test_verify_proves_every_byte(capsys):
    out = told(capsys, "verify", "runs/small")
    assert re.findall(r"gen-(\d).start-0 is whole: [\d,]+ bytes", out) == ["3", "1"]
    path = Path("runs/small/step-00000002.gen-1.start-0/rank-0-of-1.safetensors")
    encoded = bytearray(path.read_bytes())
    encoded[-40] ^= 4
    path.write_bytes(encoded)
    assert "gen-3.start-0 is whole" in told(capsys, "verify", "runs/small/4")
    error = told(capsys, "verify", "runs/small/2", code=2)
    assert "rank-0-of-1.safetensors: the hash of" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_exported_is_imported_again(capsys, dtype):
    out = told(capsys, "export", "runs/small/2", "--to", "hf", "hf", "--dtype", dtype)
    assert out.startswith(
        "step-00000002.gen-1.start-0 is in hf: model.safetensors, config.json; config.j"
    )
    arguments = ["import", "--from", "hf", "hf", "job.toml", "--set", "checkpoint.dir=runs/again"]
    out = told(capsys, *arguments)
    assert out.endswith(
        "runs/again begins with step-00000000.gen-0.start-0; train it with: "
        "remesh run job.toml --set=checkpoint.dir=runs/again\n"
    )
    check_start(weights(2.0), torch.float32 if dtype == "fp32" else torch.bfloat16)
    error = told(capsys, *arguments, code=2)
    assert "runs/again holds a run already; give this one another folder" in error


def check_start(expected, dtype):
    """A run of the job that has done no step with these weights."""
    job = load_job(Path("job.toml"))
    folder = RunFolder(Path("runs/again"))
    (ref,) = committed(folder.storage)
    manifest = read_manifest(folder.storage, ref)
    assert (ref.step, ref.generation, manifest.data.position) == (0, 0, 0)
    folder.check(job.fingerprint(manifest.data.digest))
    assert folder.last_generation() == 0
    state = read(folder.storage, ref)
    assert state["num_updates"].tolist() == [0]
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor.to(dtype).float())
        assert not state[f"exp_avg.{name}"].any()
        assert not state[f"exp_avg_sq.{name}"].any()


def test_a_model_of_other_sizes_is_told_with_the_keys_that_fit(capsys):
    other = ModelConfig(
        num_layers=1,
        width=8,
        num_heads=2,
        num_kv_heads=2,
        ffn_width=12,
        vocab_size=256,
        seq_len=16,
        qk_norm=True,
        rope_theta=5e5,
    )
    shapes = parameter_shapes(other)
    write_model(
        LocalStorage(Path("hf")),
        other,
        lambda want: {x: torch.zeros(shapes[x.name]) for x in want},
        config_of(other, "float32"),
    )
    error = told(capsys, "import", "--from", "hf", "hf", "job.toml", code=2)
    assert "num_kv_heads = 1, rope_theta = 10000.0, qk_norm = false" in error
    keys = tomllib.loads(error.partition(" needs ")[2].replace(", ", "\n"))
    assert keys == {"num_kv_heads": 2, "rope_theta": 500000.0, "qk_norm": True}
    assert not Path("runs/small/claims").exists()


def test_weights_with_other_words_are_not_trained_on_bytes_unasked(capsys):
    """user 5: 32,000 words of another tokenizer, and a dataset of bytes."""
    other = replace(MODEL, vocab_size=32000)
    shapes = parameter_shapes(other)
    write_model(
        LocalStorage(Path("hf")),
        other,
        lambda want: {x: torch.zeros(shapes[x.name]) for x in want},
        config_of(other, "float32"),
    )
    arguments = ["import", "--from", "hf", "hf", "job.toml", "--set", "model.vocab_size=32000"]
    arguments += ["--set", "checkpoint.dir=runs/again"]
    error = told(capsys, *arguments, code=2)
    assert "the model has a vocabulary of 32000 and the data in data one of 256 (bytes)" in error
    assert committed(LocalStorage(Path("runs/again"))) == []
    assert "runs/again begins with" in told(capsys, *arguments, "--new-tokenizer")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["ls", "runs/none"], "runs/none: no such run; name its folder"),
        (["ls", "data"], "no such run"),
        (["ls", "."], "there is no checkpoint; name a run's folder, such as runs/tiny"),
        (
            ["show", "runs/small/3"],
            "runs/small has no checkpoint 3; it has those of the steps 2, 4",
        ),
        (
            ["show", "runs/small/step-00000002.gen-9.start-0"],
            "has no checkpoint step-00000002.gen-9.start-0",
        ),
        (["verify", "nowhere://x/y"], "cannot be opened"),
        (["export", "runs/small/2", "out"], "--to"),
        (["export", "runs/small/2", "--to", "gguf", "out"], "gguf"),
        (["export", "runs/small/2", "--to", "hf", "runs"], "runs is not empty; name a new folder"),
        (["export", "runs/small/2", "--to", "dcp", "memory://x"], "memory://x: torch writes"),
        (["import", "--from", "hf", "none", "job.toml"], "none: no such folder"),
        (["import", "--from", "hf", "a/model.pt", "job.toml"], "a/model.pt is a pickle"),
        (["import", "--from", "hf", "runs", "job.toml"], "runs: there is no config.json"),
        (["import", "--from", "dcp", "runs", "job.toml"], "runs: there is neither .metadata nor"),
        (["import", "--from", "hf", "runs", "none.toml"], "none.toml: no such file"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(capsys, arguments, text):
    error = told(capsys, *arguments, code=2)
    assert error.startswith("remesh: ")
    assert error.count("\n") == 1
    assert text in error


def test_a_pickle_is_not_imported(capsys):
    model_files()
    Path("hf/model.safetensors").rename("hf/pytorch_model.bin")
    error = told(capsys, "import", "--from", "hf", "hf", "job.toml", code=2)
    assert "hf: pytorch_model.bin is a pickle, which may run any program and is never read" in error


@pytest.mark.parametrize("command", ["ls", "verify", "show", "export", "import"])
def test_help_shows_examples(capsys, command):
    assert f"remesh checkpoint {command}" in told(capsys, command, "--help")
