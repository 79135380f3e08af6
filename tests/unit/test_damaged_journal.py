"""A journal proves itself; what it cannot prove is told as that, and stops nobody."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from finished_run import BATCH, STEPS, WrittenDrive, contact_of, finished_run
from ladders import ladder

from remesh.actors.controller.commits import Guards, commit_checkpoint
from remesh.actors.controller.takeover import begin
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.jobs.continuing import Continuation
from remesh.actors.jobs.earlier_wish import WithWish
from remesh.actors.jobs.submit import _spec
from remesh.data.durable import Disk
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.carried import Carried
from remesh.orchestrator.control.words.commands import Commit
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.state.checkpoint import committed, read_manifest

TAKEN = WithWish(ladder=ladder(max_dp=2), carried=Carried())


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path)


def lines_of(run):
    return run.journal.read_text().splitlines(keepends=True)


def line_with(run, word):
    """The number of the first line that holds this, from 1."""
    return next(number for number, line in enumerate(lines_of(run), 1) if word in line)


def reported(run, *words):
    """The report of the run as it stands, with what the command said."""
    path = run.folder / "report.json"
    said = run.take_up("--report", path, *words)
    assert said.code == 0, said.text
    return json.loads(path.read_text()), said


def test_a_whole_run_proves_every_step(run):
    report, said = reported(run)
    assert report["samples"]["lost"] == report["samples"]["repeated"] == 0
    assert (report["samples"]["unproven"], report["unproven_steps"], report["damage"]) == (
        0,
        [],
        [],
    )
    assert None not in report["losses"]
    assert "proven" not in said.out


def test_a_journal_that_stops_before_the_newest_checkpoint_proves_no_more_than_it_holds(run):
    """security D1: it was "finished" with 40 of 80 steps, lost 0, exit 0."""
    step_7 = line_with(run, '"step":7')
    run.journal.write_text("".join(lines_of(run)[: step_7 - 1]))
    report, said = reported(run)
    assert report["steps"] == STEPS
    assert report["losses"][:6] != [None] * 6
    assert report["losses"][6:] == [None] * 6
    assert (report["samples"]["lost"], report["samples"]["repeated"]) == (None, None)
    assert report["samples"]["unproven"] == 6 * BATCH
    assert report["unproven_steps"] == ["7..12"]
    assert "steps 7..12 cannot be proven" in said.out


@pytest.mark.parametrize(
    "how", ["changed", "dropped", "swapped", "doubled", "not UTF-8", "emptied"]
)
def test_a_changed_line_is_seen_by_its_number(run, how):
    """security D1, security D2: a loss of 2.6 made 1.6 was reported as trained."""
    lines = lines_of(run)
    at = line_with(run, '"step":7') - 1
    match how:
        case "changed":
            assert '"loss":2.14' in lines[at]
            lines[at] = lines[at].replace('"loss":2.14', '"loss":1.14')
        case "dropped":
            del lines[at]
        case "swapped":
            lines[at : at + 2] = reversed(lines[at : at + 2])
        case "doubled":
            lines.insert(at, lines[at - 1])
        case "emptied":
            lines[at] = "\n"
    data = "".join(lines).encode()
    if how == "not UTF-8":
        data = data.replace(
            lines[at].encode(), lines[at].encode()[:9] + b"\xff" + lines[at].encode()[10:]
        )
    run.journal.write_bytes(data)
    report, said = reported(run)
    assert report["unproven_steps"] == ["7..12"]
    (damage,) = report["damage"]
    assert f"{run.journal}: line {at + 1}" in damage
    assert damage in said.out
    assert report["samples"]["lost"] is None


def goes_on(run):
    return Continuation(job=run.job, first={"data.digest": "d"}, checkpoints=run.run.checkpoints())


def test_a_damaged_journal_stops_no_resume_and_is_announced(tmp_path):
    """security D2: one flipped bit, and the run could not be taken up at its checkpoints."""
    run = finished_run(tmp_path)
    more = run.take_up("--set", "train.steps=20")
    assert more.code == 4, more.text  # it would go on
    lines = lines_of(run)
    at = line_with(run, '"step":7') - 1
    lines[at] = lines[at].replace("StepsDone", "StepsDune")
    run.journal.write_text("".join(lines))
    more = run.take_up("--set", "train.steps=20")
    assert more.code == 4, more.text
    spec = _spec(goes_on(run), RunOptions(), run.run, TAKEN)
    assert [text for text in spec.notices if f"{run.journal}: line {at + 1}" in text] != []


def test_a_line_cut_short_by_a_crash_is_no_damage(run):
    whole = run.journal.read_bytes()
    with run.journal.open("ab") as file:
        file.write(b'{"at_s":0.5,"told":{"is":"Tick"')
    report, _ = reported(run)
    assert (report["damage"], report["unproven_steps"]) == ([], [])
    run.journal.write_bytes(whole[:-10])
    assert reported(run)[0]["damage"] == []


def test_status_and_events_tell_the_damage_and_what_was_before_it(run):
    """security D1: 128 of 700 changed journals gave another state without a word."""
    lines = lines_of(run)
    at = line_with(run, '"step":7') - 1
    lines[at] = lines[at].replace('"step":7', '"step":8')
    run.journal.write_text("".join(lines))
    for command in ("status", "events"):
        said = run.remesh(command, run.run_dir)
        assert said.code == 0, said.text
        assert f"jsonl: line {at + 1} is damaged" in "".join(said.out).replace("\n", "")
        told = json.loads(run.remesh(command, run.run_dir, "--json").out)
        assert f"line {at + 1}" in json.dumps(told)
    assert json.loads(run.remesh("status", run.run_dir, "--json").out)["step"] == 6


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"[]\n", b"\xff\xfe\n", b"{" * 100_000 + b"\n", b"9" * 5000 + b"\n"]
)
def test_a_first_line_that_is_none_is_damage_and_no_bug(run, content):
    """security D4."""
    run.journal.write_bytes(content)
    report, said = reported(run)
    assert report["unproven_steps"] == ["1..12"]
    assert "bug" not in said.text
    assert content == b"" or f"{run.journal}: line 1" in report["damage"][0]
    status = run.remesh("status", run.run_dir)
    assert status.code == 2
    assert "bug" not in status.err
    assert status.err.count("\n") == 1


def test_foreign_and_copied_journals_are_named_and_prove_nothing(run):
    """security D4: `copy.jsonl` was a ValueError, a copied `000009.jsonl` an AssertionError."""
    folder = run.journal.parent
    shutil.copy(run.journal, folder / "copy.jsonl")
    shutil.copy(run.journal, folder / "000009.jsonl")
    report, _ = reported(run)
    assert (report["samples"]["lost"], report["unproven_steps"]) == (0, [])
    told = " ".join(report["damage"])
    assert str(folder / "copy.jsonl") in told
    assert str(folder / "000009.jsonl") in told
    assert "000001" in told


def test_a_journal_that_continues_a_missing_one_is_named(run):
    """security D4: it was an IndexError."""
    spec = _spec(goes_on(run), RunOptions(), run.run, TAKEN)
    drive = WrittenDrive(run.run, run.job, {}, incarnation=spec.incarnation, last_generation=1)
    begin(spec, drive.controller.options, run.run)  # takes over
    first, second = sorted(run.journal.parent.iterdir())[-2:]
    first.unlink()
    report, _ = reported(run)
    assert (report["samples"]["lost"], report["unproven_steps"]) == (0, [])
    assert f"{second}: line 1" in report["damage"][0]
    run.journal.unlink()
    assert reported(run)[0]["unproven_steps"] == ["1..12"]


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_controller_that_is_back_without_its_journal_is_no_first_one(run, how):
    """security B5: it took itself for a first start, and left workers behind."""
    spec = _spec(goes_on(run), RunOptions(), run.run, TAKEN)
    begun = begin(spec, run.options, run.run)
    run.run.publish(contact_of(spec.run))
    if how == "deleted":
        begun.journal.path.unlink()
    else:
        begun.journal.path.write_bytes(begun.journal.path.read_bytes().replace(b"steps", b"stebs"))
    with pytest.raises(UserError) as refused:
        begin(spec, run.options, run.run)
    assert str(begun.journal.path) in str(refused.value)
    assert "the same command resumes at the last checkpoint" in str(refused.value)


def test_a_damaged_claim_is_named_by_a_controller_that_is_back(run):
    """security B5: it was a KeyError."""
    spec = _spec(goes_on(run), RunOptions(), run.run, TAKEN)
    begin(spec, run.options, run.run)
    claim = run.run_dir / "claims" / f"{spec.incarnation:06d}.json"
    for content in (b"{}", b"[]", b"\xff", b'{"format_version": 1}'):
        claim.write_bytes(content)
        with pytest.raises(UserError, match=claim.name):
            begin(spec, run.options, run.run)


class Synced:
    """Notes at each sync of the journal which checkpoints there are by then."""

    def __init__(self, folder):
        self.folder, self.seen = folder, []

    def __call__(self):
        self.seen.append(list(self.folder.rglob("manifest.json")))


def test_the_journal_is_on_disk_before_the_checkpoint_that_it_tells_of(run):
    """security D2: after a power cut the journal told less than the checkpoints."""
    spec = replace(_spec(goes_on(run), RunOptions(), run.run, TAKEN), start=1)
    place = run.run
    files = tuple(read_manifest(place.storage, committed(place.storage)[0]).files)
    command = Commit(generation=1, step=STEPS, files=files)
    manifest = run.checkpoint(STEPS) / "manifest.json"
    manifest.unlink()
    synced = Synced(run.run_dir)
    told = commit_checkpoint(place, spec, command, None, Guards(synced))
    assert isinstance(told, ev.CheckpointCommitted)
    assert [manifest in seen for seen in synced.seen] == [False]
    assert manifest.exists()


def test_a_journal_that_cannot_be_synced_commits_nothing(run):
    """security D2."""
    spec = _spec(goes_on(run), RunOptions(), run.run, TAKEN)
    manifest = run.checkpoint(STEPS) / "manifest.json"
    files = read_manifest(run.run.storage, committed(run.run.storage)[0]).files
    manifest.unlink()

    def full():
        raise OSError(28, "No space left on device")

    command = Commit(generation=1, step=STEPS, files=files)
    told = commit_checkpoint(run.run, spec, command, None, Guards(full))
    assert isinstance(told, ev.CommitFailed)
    assert "No space left" in told.error
    assert not manifest.exists()


class CountedDisk(Disk):
    """Notes what is synced."""

    def __init__(self):
        self.synced = []

    def sync(self, file):
        self.synced.append((file.name, Path(file.name).read_bytes()))

    def sync_folder(self, folder):
        self.synced.append((folder, b""))


def test_a_writer_syncs_its_file_when_it_is_told_and_its_name_at_once(run, tmp_path):
    """security D2."""
    disk = CountedDisk()
    writer = JournalWriter(tmp_path / "other", 1, run.options, disk=disk)
    assert [folder for folder, _ in disk.synced] == [writer.path.parent, tmp_path / "other"]
    writer.event(ev.RunStarted(), 1.0)
    assert len(disk.synced) == 2
    writer.sync()
    assert disk.synced[2:] == [(str(writer.path), writer.path.read_bytes())]
    assert b"RunStarted" in disk.synced[2][1]
