"""Bad input ends with 2 and one line, whichever command it is given to, as the README says."""

from pathlib import Path

import pytest

import remesh.actors.checkpoints.exporting  # noqa: F401 - at collection, not within a test's budget
from remesh.cli.main import main

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
JOB = "job.toml"  # names data that is nowhere, so that nothing ever starts here
AT_NONE = ["--address", "http://127.0.0.1:9"]

BAD_INPUTS = [
    ["frobnicate"],
    ["run"],
    ["run", JOB, "--frobnicate"],
    ["run", "none.toml"],
    ["run", "."],
    ["run", "job.yaml"],
    ["run", "job.json"],
    ["run", "http://host/job.toml"],
    ["run", JOB, "--set", "train.lr"],
    ["run", JOB, "--set", "train.learning_rate=1"],
    ["run", JOB, "--set", "model.width=100"],
    ["plan", JOB, "--set", "checkpoint.dir=/"],
    ["run", JOB, "--set", "checkpoint.dir=s3://bucket/x"],
    ["plan", JOB, "--set", "checkpoint.url=http://x/y"],
    ["run", JOB, "--set", "data.dir=~nobody-here/x"],
    ["run", JOB, "--nodes", "two"],
    ["run", JOB, "--nodes", "65"],
    ["run", JOB, "--workers-per-node", "-1"],
    ["run", JOB, "--kill", "head@3"],
    ["run", JOB, "--report", "."],
    ["plan", "none.toml"],
    ["plan", "job.json"],
    ["plan", "."],
    ["plan", JOB, "--workers", "none"],
    ["plan", JOB, "--set", "elastic.min_workers=3", "--workers", "2"],
    ["status", "none"],
    ["status", "job.json"],
    ["events", "none"],
    ["events", "s3://bucket/run"],
    ["scale", "none.toml", "--nodes", "2"],
    ["scale", JOB, "--nodes", "none"],
    ["drain"],
    ["drain", "node", "--run", "none"],
    ["submit", JOB],
    ["submit", JOB, "--id", "a b", *AT_NONE],
    ["submit", "none.toml", *AT_NONE],
    ["submit", JOB, "--address", "ftp://host"],
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
    ["checkpoint", "import", "none", JOB, "--from", "hf"],
    ["checkpoint", "import", ".", "none.toml", "--from", "dcp"],
]


@pytest.fixture(autouse=True)
def job_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    Path(JOB).write_text(TINY.read_text().replace('"python-stdlib"', '"nowhere.txt"'))
    Path("job.yaml").write_text("train:\n  steps: 80\n")
    Path("job.json").write_text('{"train": {"steps": 80}}')


@pytest.mark.parametrize("arguments", BAD_INPUTS, ids=" ".join)
def test_bad_input_is_one_line_and_code_2(arguments, capsys):
    """user 1.1: the table of exit codes holds."""
    assert main(arguments) == 2
    out, error = capsys.readouterr()
    assert error.startswith("remesh: ")
    assert error.count("\n") == 1
    assert len(error) > len("remesh: 12345678")
    assert "a bug in remesh" not in error
    assert "nowhere.txt" not in error
    assert "Traceback" not in out + error
