"""A fresh start deletes nothing that is wanted still; only a wish begins a run from nothing."""

import shlex
from pathlib import Path

import pytest
from control_values import options
from test_actors_run_folder import CONTACT, FINGERPRINT, commit
from test_other_versions import small_job

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.old_runs import discard, heal, keep, set_aside, told
from remesh.actors.storage.file_storage import LocalStorage
from remesh.cli.main import main
from remesh.data.durable import Disk
from remesh.orchestrator.control.words.events import CheckpointCommitted

NOWHERE = ("--address", "127.0.0.1:1")


@pytest.fixture
def run(tmp_path):
    """The folder of a run that has saved step 20 and was interrupted."""
    folder = RunFolder(tmp_path / "runs" / "tiny")
    commit(folder, 20, 1)
    folder.keep(FINGERPRINT)
    writer = JournalWriter(folder.path, folder.claim("ab12"), options(steps=80))
    told = CheckpointCommitted(generation=1, step=20, name="step-00000020.gen-1.start-0")
    writer.event(told, 1.0)
    return folder


def files_of(folder):
    there = folder.storage.list()
    return {path: folder.storage.get(path) for path in there if path != "lock"}


def test_a_fresh_start_that_cannot_connect_has_deleted_nothing(run, tmp_path, capsys):
    """user 1"""
    before = files_of(run)
    assert main(["run", *small_job(tmp_path), "--fresh", *NOWHERE]) == 4
    assert "no Ray head answers there" in capsys.readouterr().err
    assert files_of(run) == before


def test_a_fresh_start_refuses_while_an_unreachable_controller_may_live(run, tmp_path, capsys):
    """user 1b: it was seen a moment ago, from a machine whose loopback is not ours."""
    run.publish(CONTACT)
    before = files_of(run)
    assert main(["run", *small_job(tmp_path), "--fresh", *NOWHERE]) == 2
    error = capsys.readouterr().err
    assert "cannot be reached from here" in error
    assert "last word" in error
    assert files_of(run) == before


def test_a_run_whose_checkpoints_are_gone_does_not_begin_from_fresh_parameters(
    tmp_path, capsys, monkeypatch
):
    """inputs B2, user 1 (their kind): an emptied bucket, a missing mount, another URL."""
    monkeypatch.chdir(tmp_path)
    words = small_job(tmp_path)
    folder = RunFolder(tmp_path / "runs" / "tiny")
    writer = JournalWriter(folder.path, folder.claim("ab12"), options(steps=80))
    writer.event(
        CheckpointCommitted(generation=1, step=20, name="step-00000020.gen-1.start-0"), 1.0
    )
    place = tmp_path / "bucket"
    assert main(["run", *words, "--set", f"checkpoint.url={place}", *NOWHERE]) == 2
    error = capsys.readouterr().err
    assert "step-00000020.gen-1.start-0" in error
    assert f"{place} holds no checkpoint" in error
    assert str(folder.path) in error
    assert "--fresh" in error


def test_an_old_run_can_be_taken_up_where_it_was_set_aside(run):
    """user 1: by the words that the message gives."""
    before = files_of(run)
    number = set_aside(run.places)
    assert (run.fingerprint(), run.checkpoints()) == (None, ())
    text = told(number, run.path, None)
    assert text.startswith(f"the run before lies in {run.path}/.old-1 until this one has finished")
    (word,) = shlex.split(text.partition("--set ")[2])
    assert word == f"checkpoint.dir={run.path}/.old-1"
    old = RunFolder(Path(word.partition("=")[2]))
    old.check_kept()
    assert old.fingerprint() == FINGERPRINT
    assert [state.step for state in old.checkpoints()] == [20]
    claims = {"claims/000001.json", ".moved.json"}
    assert before.keys() - claims == files_of(old).keys() - claims
    assert old.claim("cd34") == 2


def test_an_old_run_behind_a_url_is_named_inside_of_it(tmp_path):
    """user 1"""
    text = told(2, tmp_path, "s3://b/run#1/?region=x&scheme=http")
    words = shlex.split(text.partition("take it up with: ")[2])
    assert words[1] == f"checkpoint.dir={tmp_path}/.old-2"
    assert words[3] == "checkpoint.url=s3://b/run#1/.old-2?region=x&scheme=http"
    assert told(1, tmp_path, "/disk/what?").endswith("--set 'checkpoint.url=/disk/what?/.old-1'")


def test_old_runs_are_deleted_by_their_records_alone(run):
    """user 1: with the next success, and nothing that came there by other ways."""
    set_aside(run.places)
    commit(run, 40, 1)
    run.keep(FINGERPRINT)
    set_aside(run.places)
    foreign = [
        ".old-1/notes.txt",
        ".old-2/step-00000040.gen-1.start-0/notes.txt",
        ".old-3/journal/1.jsonl",
    ]
    for path in foreign:
        run.storage.put(path, b"mine")
    run.keep(FINGERPRINT)
    discard(run.places)
    assert run.storage.list() == sorted([*foreign, "claims/000001.json", "fingerprint.json"])


def test_an_old_run_that_was_taken_up_is_deleted_by_nobody(run):
    """user 1"""
    set_aside(run.places)
    old = RunFolder(run.path / ".old-1")
    keep(old.places)
    before = files_of(old)
    discard(run.places)
    assert files_of(old) == before


def test_where_there_is_no_run_nothing_is_set_aside(tmp_path):
    """user 1"""
    folder = RunFolder(tmp_path / "none")
    folder.claim("ab12")
    assert set_aside(folder.places) is None
    assert folder.storage.list() == ["claims/000001.json"]


class StopsAt(Disk):
    """A disk whose process dies before its n-th change."""

    def __init__(self, at):
        self.left = at

    def _change(self):
        self.left -= 1
        if self.left < 0:
            raise Died

    def create(self, path, mode):
        self._change()
        return super().create(path, mode)

    def replace(self, source, target):
        self._change()
        super().replace(source, target)

    def unlink(self, path):
        self._change()
        super().unlink(path)

    def make_folder(self, folder):
        self._change()
        super().make_folder(folder)

    def remove_folder(self, folder):
        self._change()
        super().remove_folder(folder)

    def sync(self, file):
        file.flush()

    def sync_folder(self, folder):
        pass


class Died(BaseException):
    pass


def two_places(root, disk):
    """Those of a run whose checkpoints lie elsewhere, with what is in each."""
    places = LocalStorage(root / "bucket", disk), LocalStorage(root / "run", disk)
    contents = (
        {
            "fingerprint.json": b"f",
            "step-00000020.gen-1.start-0/manifest.json": b"m",
            "claims/1": b"c",
        },
        {"fingerprint.json": b"f", "journal/000001.jsonl": b"j", "notes.txt": b"mine"},
    )
    return places, contents


def contents_of(place, folder=""):
    return {path: place.get(f"{folder}{path}") for path in paths_of(place, folder)}


def paths_of(place, folder):
    records = {".moving.json", ".moved.json"}
    found = [path.removeprefix(folder) for path in place.list(folder)]
    return [path for path in found if path not in records and (folder or ".old-" not in path)]


def test_a_crash_at_any_step_of_the_move_loses_nothing(tmp_path):
    """user 1: the next command finds the old run where it was, or set aside as a whole."""
    outcomes = []
    for at in range(200):
        root = tmp_path / str(at)
        places, contents = two_places(root, StopsAt(10**6))
        for place, content in zip(places, contents, strict=True):
            for path, data in content.items():
                place.put(path, data)
        crashing, _ = two_places(root, StopsAt(at))
        try:
            done = set_aside(crashing)
        except Died:
            done = None
        heal(places)
        assert not any(name.endswith(".moving.json") for place in places for name in place.list())
        stayed = [contents_of(place) for place in places]
        moved = [contents_of(place, ".old-1/") for place in places]
        whole = [{**old, **new} for old, new in zip(moved, stayed, strict=True)]
        assert whole == list(contents)
        is_moved = stayed == [{"claims/1": b"c"}, {"notes.txt": b"mine"}]
        assert is_moved or (stayed == list(contents) and moved == [{}, {}])
        outcomes.append(is_moved)
        if done:
            break
    assert outcomes == sorted(outcomes)
    assert 10 < outcomes.count(False) < len(outcomes)


def test_a_crash_while_the_move_is_undone_loses_nothing_either(tmp_path):
    """user 1"""
    for at in range(200):
        root = tmp_path / str(at)
        places, contents = two_places(root, StopsAt(10**6))
        for place, content in zip(places, contents, strict=True):
            for path, data in content.items():
                place.put(path, data)
        crashing, _ = two_places(root, StopsAt(14))
        with pytest.raises(Died):
            set_aside(crashing)
        healing, _ = two_places(root, StopsAt(at))
        try:
            heal(healing)
            done = True
        except Died:
            done = False
        heal(places)
        assert [contents_of(place) for place in places] == list(contents)
        if done:
            return
    raise AssertionError("it never came to an end")
