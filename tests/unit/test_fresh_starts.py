"""A fresh start deletes nothing that is wanted still; only a wish begins a run from nothing."""

import pytest
from control_values import options
from test_actors_run_folder import CONTACT, FINGERPRINT, commit
from test_other_versions import small_job

from remesh.actors.run.folder import RunFolder
from remesh.actors.run.journal_files import JournalWriter
from remesh.cli.main import main
from remesh.orchestrator.control.words.events import CheckpointCommitted

NOWHERE = ("--address", "127.0.0.1:1")


@pytest.fixture
def run(tmp_path):
    """The folder of a run that has saved step 20 and was interrupted."""
    folder = RunFolder(tmp_path / "runs" / "tiny")
    commit(folder, 20, 1)
    folder.keep(FINGERPRINT)
    writer = JournalWriter(folder.path, folder.claim("ab12"), options(steps=80))
    told = CheckpointCommitted(generation=1, step=20, name="step-00000020.gen-1")
    writer.event(told, 1.0)
    return folder


def files_of(folder):
    there = folder.storage.list()
    return {path: folder.storage.get(path) for path in there if path != "lock"}


@pytest.mark.xfail(strict=True, reason="user 1")
def test_a_fresh_start_that_cannot_connect_has_deleted_nothing(run, tmp_path, capsys):
    """user 1"""
    before = files_of(run)
    assert main(["run", *small_job(tmp_path), "--fresh", *NOWHERE]) == 4
    assert "no Ray head answers there" in capsys.readouterr().err
    assert files_of(run) == before


@pytest.mark.xfail(strict=True, reason="user 1b")
def test_a_fresh_start_refuses_while_an_unreachable_controller_may_live(run, tmp_path, capsys):
    """user 1b: it was seen a moment ago, from a machine whose loopback is not ours."""
    run.publish(CONTACT)
    before = files_of(run)
    assert main(["run", *small_job(tmp_path), "--fresh", *NOWHERE]) == 2
    error = capsys.readouterr().err
    assert "cannot be reached from here" in error
    assert "last word" in error
    assert files_of(run) == before


@pytest.mark.xfail(strict=True, reason="issue 9, 3")
def test_a_run_whose_checkpoints_are_gone_does_not_begin_from_fresh_parameters(
    tmp_path, capsys, monkeypatch
):
    """inputs B2, user 1 (their kind): an emptied bucket, a missing mount, another URL."""
    monkeypatch.chdir(tmp_path)
    words = small_job(tmp_path)
    folder = RunFolder(tmp_path / "runs" / "tiny")
    writer = JournalWriter(folder.path, folder.claim("ab12"), options(steps=80))
    writer.event(CheckpointCommitted(generation=1, step=20, name="step-00000020.gen-1"), 1.0)
    place = tmp_path / "bucket"
    assert main(["run", *words, "--set", f"checkpoint.url={place}", *NOWHERE]) == 2
    error = capsys.readouterr().err
    assert "step-00000020.gen-1" in error
    assert f"{place} holds no checkpoint" in error
    assert str(folder.path) in error
    assert "--fresh" in error
