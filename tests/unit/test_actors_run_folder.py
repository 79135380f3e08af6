import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from control_values import options
from manifests import checkpoint_manifest
from nobody import as_nobody

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.contact import Contact
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.old_runs import set_aside
from remesh.actors.storage.file_storage import TEMPORARY
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.state.root_manifest import (
    CheckpointRef,
    ShardFile,
    encode_manifest,
)

FINGERPRINT = {"seed": 0, "model.width": 128, "train.lr": 3e-3}
CONTACT = Contact(
    run="ab12",
    host="127.0.0.1",
    port=1,
    token="secret",
    address="127.0.0.2:20500",
    pid=1,
    started_s=1.0,
)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs" / "tiny")


@pytest.fixture
def closed_place():
    """A folder that nobody but root may write to, and nobody can who is not root."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    (path / "open").mkdir()
    (path / "open").chmod(0o777)
    path.chmod(0o555)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def commit(folder, step, generation, fingerprint=FINGERPRINT):
    ref = CheckpointRef(step=step, generation=generation)
    shard = ShardFile(name="rank-0-of-1.safetensors", size_bytes=3, digest="x")
    more = {"fingerprint": fingerprint, "position": step}
    manifest = checkpoint_manifest(ref, [shard], **more)
    folder.storage.put(f"{ref.name}/{shard.name}", b"abc")
    folder.storage.put(ref.manifest_path, encode_manifest(manifest))
    return ref


def test_starts_are_numbered(folder):
    assert folder.newest_claim() == 0
    assert [folder.claim("one"), folder.claim("two")] == [1, 2]
    folder.storage.put("claims/notes.txt", b"foreign")
    assert folder.newest_claim() == 2
    assert folder.claim("three") == 3
    assert json.loads(folder.storage.get("claims/000002.json"))["run"] == "two"


def test_of_all_that_start_at_once_each_gets_another_number(folder):
    with ThreadPoolExecutor(8) as starters:
        numbers = list(starters.map(folder.claim, [f"run-{n}" for n in range(16)]))
    assert sorted(numbers) == list(range(1, 17))


def test_a_folder_keeps_one_run(folder):
    assert folder.fingerprint() is None
    folder.keep(FINGERPRINT)
    folder.keep(dict(reversed(FINGERPRINT.items())))
    assert folder.fingerprint() == FINGERPRINT
    with pytest.raises(UserError, match=r"holds another run: .*model\.width.*checkpoint\.dir=DIR"):
        folder.keep({**FINGERPRINT, "model.width": 256})
    assert folder.fingerprint() == FINGERPRINT


def test_a_folder_tells_the_bits_of_the_last_start(folder):
    assert folder.bits() is None
    folder.keep_bits({"train.threads": 1})
    folder.keep_bits({"train.threads": 2})
    assert folder.bits() == {"train.threads": 2}
    set_aside(folder.places)
    assert folder.bits() is None


def test_checkpoints_alone_tell_which_run_they_are_of(folder):
    commit(folder, 20, 1)
    assert folder.fingerprint() == FINGERPRINT
    folder.keep(FINGERPRINT)
    with pytest.raises(UserError, match="seed"):
        folder.keep({**FINGERPRINT, "seed": 1})


def test_a_fresh_start_forgets_the_run_and_nothing_else(folder):
    foreign = [
        "step-by-step.md",
        "step-00000020.gen-1.start-0/notes.txt",
        "journal/monday.md",
        "a/b.txt",
    ]
    for path in foreign:
        folder.storage.put(path, b"mine")
    commit(folder, 20, 1)
    folder.keep(FINGERPRINT)
    JournalWriter(folder.path, folder.claim("ab12"), options(steps=1, max_dp=1))
    folder.storage.put("faults/ab12-0.json", b"{}")
    folder.publish(CONTACT)
    set_aside(folder.places)
    there = [path for path in folder.storage.list() if not path.startswith(".old-1/")]
    assert there == sorted([*foreign, "claims/000001.json"])
    assert folder.fingerprint() is None
    assert folder.checkpoints() == ()


def test_a_fresh_start_still_fences_the_controller_before_it(folder):
    old = folder.claim("old")
    set_aside(folder.places)
    assert folder.claim("new") > old
    assert folder.newest_claim() > old


def test_checkpoints_are_listed_newest_first(folder):
    refs = [commit(folder, step, generation) for step, generation in ((20, 1), (60, 2), (40, 1))]
    folder.storage.put("step-00000080.gen-2.start-0/rank-0-of-1.safetensors", b"half")
    assert [(state.step, state.name) for state in folder.checkpoints()] == [
        (60, refs[1].name),
        (40, refs[2].name),
        (20, refs[0].name),
    ]


def test_generations_go_on_from_all_starts_before(folder):
    assert folder.last_generation() == 0
    commit(folder, 20, 3)
    assert folder.last_generation() == 3
    wanted = options(max_dp=1, last_generation=7)
    JournalWriter(folder.path, 1, wanted)  # a start that ended before it formed a mesh
    assert folder.last_generation() == 7
    torn = JournalWriter(folder.path, 2, replace(wanted, last_generation=9))
    torn.path.write_bytes(torn.path.read_bytes()[:30])
    assert folder.last_generation() == 7


def test_the_contact_is_for_the_user_alone(folder):
    assert folder.contact() is None
    folder.keep(FINGERPRINT)
    folder.publish(CONTACT)
    assert (folder.path / "run.json").stat().st_mode & 0o777 == 0o600
    assert folder.contact() == CONTACT
    newer = replace(CONTACT, run="cd34", port=2)
    folder.publish(newer)
    assert folder.contact() == newer


def test_a_contact_is_withdrawn_by_its_own_run_only(folder):
    folder.keep(FINGERPRINT)
    folder.publish(CONTACT)
    folder.withdraw("cd34")
    assert folder.contact() == CONTACT
    folder.withdraw("ab12")
    assert folder.contact() is None
    folder.withdraw("ab12")


@pytest.mark.parametrize("text", ["", "{", '{"format_version": 4, "run": 1, "more": 2}'])
def test_a_contact_that_cannot_be_read_is_none(folder, text):
    folder.storage.put("run.json", text.encode())
    assert folder.contact() is None


def test_the_contact_of_another_user_is_none(closed_place):
    place = RunFolder(closed_place / "open")
    place.publish(CONTACT)
    assert place.contact() == CONTACT
    (place.path / "run.json").chmod(0)
    assert as_nobody(place.contact) == "None"


def test_a_folder_that_takes_files_is_left_as_it_was(folder):
    folder.probe()
    assert not list(folder.path.iterdir())


def test_unfinished_files_of_a_crash_are_gone_after_the_probe(folder):
    commit(folder, 20, 1)
    half = folder.path / "step-00000020.gen-1.start-0" / f"{TEMPORARY}0123456789abcdef"
    half.write_bytes(b"half")
    os.utime(half, (1.0, 1.0))
    folder.probe()
    assert not half.exists()
    assert len(folder.checkpoints()) == 1


def test_a_folder_that_takes_no_files_is_refused_before_anything_starts(closed_place):
    said = as_nobody(RunFolder(closed_place / "new").probe)
    assert said.startswith("UserError(")
    assert f"{closed_place / 'new'}: cannot be written: Permission" in said
    assert "--set checkpoint.dir=DIR" in said


def test_a_writable_folder_in_one_that_is_not_serves(closed_place):
    folder = RunFolder(closed_place / "open")
    assert as_nobody(folder.probe) == "None"
    assert as_nobody(lambda: folder.claim("ab12")) == "1"
    assert folder.newest_claim() == 1


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder(tmp_path / "run").probe()
