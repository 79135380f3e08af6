"""`remesh branch`: another run that begins with a checkpoint, and needs nothing of the first."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from control_values import options
from test_cli_checkpoint import JOB, save

import remesh.actors.checkpoints.branching  # noqa: F401 - at collection, not within a test's budget
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.jobs.continuing import continuation_of
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.status import read_status
from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.storage.storage_url import open_storage
from remesh.cli.main import main
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import load_job
from remesh.parallel.state.checkpoint import commit, committed, read_manifest
from remesh.parallel.state.reading import read
from remesh.parallel.state.root_manifest import CheckpointRef

AT_2, AT_4 = CheckpointRef(step=2, generation=1), CheckpointRef(step=4, generation=3)


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A job file, and a run of it with checkpoints at steps 2 and 4."""
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    for ref in (AT_2, AT_4):
        save(LocalStorage(Path("runs/small")), ref)


def told(capsys, *arguments, code=0):
    assert main(["branch", *arguments]) == code
    captured = capsys.readouterr()
    assert not code or captured.err.count("\n") == 1
    return captured.err if code else captured.out.splitlines()[-1]


def job_of(said):
    """The job of the command that was told, and its place."""
    [_remesh, _run, name, *sets] = shlex.split(said.partition("train it with: ")[2])
    job = load_job(Path("job.toml" if name == "JOB" else name), [one[6:] for one in sets])
    return job, RunFolder(job.run_dir, job.checkpoint.url)


def test_a_branch_goes_on_with_all_of_the_state_and_needs_nothing_of_the_first(capsys):
    """inputs B1."""
    before = {path: path.read_bytes() for path in Path("runs/small").rglob("*") if path.is_file()}
    expected = read(LocalStorage(Path("runs/small")), AT_2)
    said = told(capsys, "runs/small/2", "--as", "other", "--set", "train.lr=0.001")
    assert said.startswith(
        "runs/other begins with step-00000002.gen-1.start-0; train it with: remesh run "
    )
    assert {path: path.read_bytes() for path in before} == before
    shutil.rmtree("runs/small")
    job, folder = job_of(said)
    assert (job.name, str(job.run_dir)) == ("other", "runs/other")
    found = continuation_of(job, "d", folder, RunOptions())
    assert (found.step, found.added, folder.last_generation()) == (2, (), 1)
    assert [str(one) for one in found.kept] == ["from step 3 on: train.lr 0.003 -> 0.001"]
    state = read(folder.storage, AT_2)
    assert all(torch.equal(state[name], expected[name]) for name in expected | state)
    assert read_manifest(folder.storage, AT_2).data.position == 4


def test_it_tells_where_it_comes_from(capsys):
    said = told(capsys, "job.toml", "--as", "other")
    assert "remesh run job.toml --set=job.name=other" in said
    assert main(["checkpoint", "show", "runs/other", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["job"]["origin"] == "runs/small/step-00000004.gen-3.start-0"
    job, folder = job_of(said)
    origin = continuation_of(job, "d", folder, RunOptions()).origin
    JournalWriter(folder.path, 1, options(origin=origin))
    assert read_status(folder.path)["origin"] == "runs/small/step-00000004.gen-3.start-0"


def test_a_branch_of_a_branch_keeps_what_it_was_trained_with_and_nothing_later(capsys):
    told(capsys, "runs/small/2", "--as", "other", "--set", "train.lr=0.001")
    other = LocalStorage(Path("runs/other"))
    save(other, AT_4)
    told(capsys, "runs/other/2", "--as", "third", "--set", 'data.skip=["5"]')
    [ref] = committed(LocalStorage(Path("runs/third")))
    told_by = read_manifest(LocalStorage(Path("runs/third")), ref).fingerprint
    assert {key: told_by[key] for key in told_by if "@" in key} == {"data.skip@3": '"" -> "5..5"'}
    assert told_by["origin"] == "runs/other/step-00000002.gen-1.start-0"


def test_what_the_run_had_ahead_of_the_checkpoint_is_not_of_the_branch(capsys):
    storage = LocalStorage(Path("runs/small"))
    manifest = read_manifest(storage, AT_4)
    changes = {"train.lr@4": "0.003 -> 0.002", "train.clip@9": "1.0 -> 0.5"}
    storage.delete(AT_4.manifest_path)
    commit(storage, replace(manifest, fingerprint={**manifest.fingerprint, **changes}))
    told(capsys, "runs/small", "--as", "other", "--set", "train.beta1=0.5")
    found = read_manifest(LocalStorage(Path("runs/other")), AT_4).fingerprint
    assert {key for key in found if "@" in key} == {"train.lr@4", "train.beta1@5"}


def test_a_run_behind_a_url_is_branched_there(capsys):
    save(open_storage("memory://branched/runs/small"), AT_4)
    said = told(capsys, "memory://branched/runs/small", "--as", "other", "--set", "train.clip=0.5")
    assert said.startswith("memory://branched/runs/other begins with step-00000004.gen-3.start-0")
    job, folder = job_of(said)
    assert job.checkpoint.url == "memory://branched/runs/other"
    assert continuation_of(job, "d", folder, RunOptions()).step == 4
    assert read(folder.guarded, AT_4).keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs/small/3"], "runs/small has no checkpoint 3; it has those of the steps 2, 4"),
        (["runs/none"], "runs/none: no such run"),
        (["runs/small", "--set", "model.width=16"], "model.width: it shapes the parameters"),
        (["runs/small", "--set", "train.global_batch=4"], "it shapes which samples a step has"),
        (["runs/small", "--set", "train.steps=9"], "give train.steps to remesh run"),
        (["runs/small", "--set", "train.lr=low"], "--set: train.lr"),
        (["runs/small", "--set", "train.lr=-1"], "--set: train.lr"),
        (
            ["runs/small", "--set", 'data.skip=["4"]'],
            "the first that may be skipped",
        ),
        (["runs/small", "--as", "a/b"], "--as 'a/b': a name has 1 to 64 letters"),
        (["runs/small", "--as", "small"], "runs/small is not empty; branch off with another --as"),
        (["memory://whole", "--as", "x"], "memory://whole is all of its bucket"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_with_nothing_begun(capsys, words, said):
    """inputs B1."""
    save(open_storage("memory://whole"), AT_4)
    more = [] if "--as" in words else ["--as", "other"]
    assert said in told(capsys, *words, *more, code=2)
    assert not Path("runs/other").exists()


def test_a_damaged_checkpoint_begins_no_run(capsys):
    [path] = Path("runs/small/step-00000004.gen-3.start-0").glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "step-00000004.gen-3.start-0 cannot be read" in told(
        capsys, "runs/small", "--as", "o", code=2
    )
    assert not Path("runs/o").exists()
