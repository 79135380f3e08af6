"""A run's folder that another version has written is refused in one line, whoever looks at it."""

import json
from pathlib import Path

import pytest
from control_values import options
from test_actors_run_folder import CONTACT, FINGERPRINT, commit

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.old_runs import set_aside
from remesh.cli.data_commands import ensure_dataset
from remesh.cli.main import main
from remesh.orchestrator.control.words.run_format import RUN_FORMAT, RunFormatError
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.errors import CheckpointError

TINY = str(Path(__file__).parents[2] / "examples" / "tiny.toml")
BOTH = (
    f"format_version none, as those of 0.1, this Remesh reads {RUN_FORMAT}; start over with "
    f"--fresh, or give"
)


@pytest.fixture
def old(tmp_path):
    """The folder of a run of 0.1 whose controller was killed; none of its files has a version."""
    folder = RunFolder(tmp_path / "runs" / "tiny")
    texts = {
        "fingerprint.json": json.dumps(FINGERPRINT),
        "run.json": json.dumps({"run": "ab12", "host": "127.0.0.1", "port": 1, "pid": 1}),
        "claims/000001.json": '{"run": "ab12", "claimed_s": 1.0}',
        "faults/ab12-0.json": '{"died": "worker-0", "at_s": 1.0}',
        "journal/000001.jsonl": '{"at_s":0.0,"event":"RunOpened","options":{"steps":80}}\n'
        '{"at_s":1.0,"event":"RunStarted"}\n',
        "step-00000020.gen-1.start-0/manifest.json": '{"format_version": 1, "step": 20}',
    }
    for path, text in texts.items():
        folder.storage.put(path, text.encode())
    return folder


def small_job(tmp_path):
    """The words that name it, with its data built."""
    source = tmp_path / "a.txt"
    source.write_text("to be or not to be, that is the question\n" * 40)
    small = ["train.seq_len=16", f"data.dir={tmp_path / 'data'}", f"data.source={source}"]
    ensure_dataset(load_job(Path(TINY), small), lambda _: None)
    small.append(f"checkpoint.dir={tmp_path / 'runs' / 'tiny'}")
    return [TINY, *(word for one in small for word in ("--set", one))]


@pytest.mark.parametrize("left", ["run.json", "fingerprint.json"])
def test_no_command_goes_on_with_it(old, tmp_path, capsys, left):
    for path in {"run.json", "fingerprint.json"} - {left}:
        old.storage.delete(path)
    words = [["run", *small_job(tmp_path)]]
    words += [["status", str(old.path)], ["events", str(old.path)]]
    for arguments in words:
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"remesh: {old.path}/")
        assert BOTH in said
        assert said.count("\n") == 1


def test_each_file_of_a_run_says_its_version_and_is_not_read_without(tmp_path, old):
    reads = {
        "run.json": lambda folder: folder.contact(),
        "fingerprint.json": lambda folder: folder.fingerprint(),
        "journal/000001.jsonl": lambda folder: folder.last_generation(),
        "claims/000001.json": lambda folder: folder.claim_again("ab12"),
    }
    old.storage.delete("step-00000020.gen-1.start-0/manifest.json")
    new = RunFolder(tmp_path / "new")
    assert new.claim("ab12") == 1
    new.keep(FINGERPRINT)
    new.publish(CONTACT)
    JournalWriter(new.path, 1, options(steps=1, max_dp=1))
    for path, read in reads.items():
        assert b'"format_version":%d' % RUN_FORMAT in new.storage.get(path).replace(b" ", b"")
        read(new)
        with pytest.raises(RunFormatError, match=BOTH):
            read(old)


def test_checkpoints_of_it_are_refused_with_both_versions(old):
    old.storage.delete("fingerprint.json")
    with pytest.raises(CheckpointError) as refused:
        old.fingerprint()
    assert str(refused.value) == (
        "checkpoint step-00000020.gen-1.start-0 cannot be read: manifest.json: it has "
        "format_version 1, this Remesh reads 3; bring the file back, or use the version that "
        "wrote it, or start over with --fresh"
    )


def test_a_fresh_start_goes_past_it_and_keeps_its_claims(old):
    with pytest.raises(UserError, match=BOTH):
        old.check_free()
    old.check_free(fresh=True)
    set_aside(old.places)
    assert [path for path in old.storage.list() if ".old-1" not in path] == ["claims/000001.json"]
    old.keep(FINGERPRINT)
    assert (old.fingerprint(), old.claim("cd34")) == (FINGERPRINT, 2)


def test_a_word_of_another_version_is_not_withdrawn(old):
    old.withdraw("ab12")
    assert old.storage.list("run.json") == ["run.json"]


def test_a_checkpoint_of_today_is_read(tmp_path):
    folder = RunFolder(tmp_path / "new")
    commit(folder, 20, 1)
    assert folder.fingerprint() == FINGERPRINT
