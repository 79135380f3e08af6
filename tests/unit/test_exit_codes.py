"""Bad input ends with 2 and one line, whichever command it is given to, as the README says."""

from pathlib import Path

import pytest

from remesh.cli.main import main

TINY = str(Path(__file__).parents[2] / "examples" / "tiny.toml")
AT_NONE = ["--address", "http://127.0.0.1:9"]

BAD_INPUTS = [
    ["frobnicate"],
    ["run"],
    ["run", TINY, "--frobnicate"],
    ["run", "none.toml"],
    ["run", "."],
    ["run", "job.yaml"],
    ["run", "job.json"],
    ["run", "http://host/job.toml"],
    ["run", TINY, "--set", "train.lr"],
    ["run", TINY, "--set", "train.learning_rate=1"],
    ["run", TINY, "--set", "model.width=100"],
    ["plan", TINY, "--set", "checkpoint.dir=/"],
    ["run", TINY, "--set", "checkpoint.dir=s3://bucket/x"],
    ["plan", TINY, "--set", "checkpoint.url=http://x/y"],
    ["run", TINY, "--set", "data.dir=~nobody-here/x"],
    ["run", TINY, "--nodes", "two"],
    ["run", TINY, "--nodes", "65"],
    ["run", TINY, "--workers-per-node", "-1"],
    ["run", TINY, "--kill", "head@3"],
    ["run", TINY, "--report", "."],
    ["plan", "none.toml"],
    ["plan", "job.json"],
    ["plan", "."],
    ["plan", TINY, "--workers", "none"],
    ["plan", TINY, "--set", "elastic.min_workers=3", "--workers", "2"],
    ["status", "none"],
    ["status", "job.json"],
    ["events", "none"],
    ["events", "s3://bucket/run"],
    ["scale", "none.toml", "--nodes", "2"],
    ["scale", TINY, "--nodes", "none"],
    ["drain"],
    ["drain", "node", "--run", "none"],
    ["submit", TINY],
    ["submit", TINY, "--id", "a b", *AT_NONE],
    ["submit", "none.toml", *AT_NONE],
    ["submit", TINY, "--address", "ftp://host"],
    ["logs"],
    ["stop"],
    ["resume"],
    ["data"],
    ["data", "build"],
    ["data", "build", "none", "--out", "x", "--seq-len", "8"],
    ["data", "build", ".", "--out", "x", "--seq-len", "0"],
    ["data", "build", ".", "--out", "x", "--seq-len", "8", "--also", ""],
    ["checkpoint", "ls"],
    ["checkpoint", "ls", "none"],
    ["checkpoint", "show", "none/3"],
    ["checkpoint", "verify", "none"],
    ["checkpoint", "verify", "nofs://x/y"],
    ["checkpoint", "export", "none", "--to", "hf", "out"],
    ["checkpoint", "export", "none", "--to", "gguf", "out"],
    ["checkpoint", "import", "none", TINY, "--from", "hf"],
    ["checkpoint", "import", ".", "none.toml", "--from", "dcp"],
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    Path("job.yaml").write_text("train:\n  steps: 80\n")
    Path("job.json").write_text('{"train": {"steps": 80}}')


@pytest.mark.parametrize("arguments", BAD_INPUTS, ids=" ".join)
def test_bad_input_is_one_line_and_code_2(arguments, capsys):
    """user 1.1, user 18: the table of exit codes holds."""
    assert main(arguments) == 2
    out, error = capsys.readouterr()
    assert error.startswith("remesh: ")
    assert error.count("\n") == 1
    assert len(error) > len("remesh: 12345678")
    assert "a bug in remesh" not in error
    assert "Traceback" not in out + error
