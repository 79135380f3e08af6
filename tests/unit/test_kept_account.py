"""The account of a run that is over, for who asks again (speed 10)."""

import json
from dataclasses import replace

import pytest
from finished_run import BATCH, STEPS, finished_run

from remesh.actors.history.journal_files import FOLDER
from remesh.actors.history.kept_account import NAME, KeptAccount
from remesh.actors.jobs.finishing import Outcome
from remesh.actors.run.account_tail import AccountTail
from remesh.actors.run.run_report import report_of

KEYS = {"a": 1.0, "losses": [2.5, None, 0.1, -0.0]}


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path)


@pytest.fixture
def kept(run):
    return KeptAccount(run.run_dir, "this")


@pytest.fixture
def place(run):
    return run.run_dir / FOLDER / NAME


def outcome(run):
    return Outcome(folder=run.run, job=run.job, tail=AccountTail(run.run, run.job))


def test_who_asks_again_takes_no_journal_apart(run):
    first, again = outcome(run), outcome(run)
    told = first.report("finished")
    assert told == report_of(run.run, run.job, status="finished")
    assert again.report("finished") == told
    assert first.tail.num_lines > 0
    assert again.tail.num_lines == 0
    assert told["samples"]["consumed"] == STEPS * BATCH


def test_an_account_comes_back_as_it_was(kept):
    assert kept.told() is None
    kept.keep(KEYS, kept.sizes())
    assert repr(kept.told()) == repr(KEYS)


@pytest.mark.parametrize("what", ["longer", "changed", "more", "gone"])
def test_of_other_journals_it_is_none(run, kept, what):
    kept.keep(KEYS, kept.sizes())
    whole = run.journal.read_bytes()
    match what:
        case "longer":
            run.journal.write_bytes(whole + b"x\n")
        case "changed":
            run.journal.write_bytes(whole[:99] + bytes([whole[99] ^ 1]) + whole[100:])
        case "more":
            (run.run_dir / FOLDER / "000002.jsonl").write_bytes(b"")
        case "gone":
            run.journal.unlink()
    assert kept.told() is None


def test_of_another_job_or_data_or_checkpoint_it_is_none(run, kept):
    kept.keep(KEYS, kept.sizes())
    assert KeptAccount(run.run_dir, "that").told() is None
    outcome(run).report("finished")
    other = run.job.train.model_copy(update={"lr": 1.0})
    changed = replace(outcome(run), job=run.job.model_copy(update={"train": other}))
    assert changed._kept().told() is None
    (run.checkpoint(12) / "manifest.json").unlink()
    assert outcome(run)._kept().told() is None


def test_a_damaged_or_torn_one_is_none_and_made_again(run, place):
    outcome(run).report("finished")
    whole = place.read_bytes()
    for at in range(0, len(whole), 7):
        place.write_bytes(whole[:at])
        assert outcome(run)._kept().told() is None
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert outcome(run)._kept().told() is None
    assert outcome(run).report("finished")["samples"]["lost"] == 0
    assert place.read_bytes() == whole


def test_nothing_is_kept_of_journals_that_grow_meanwhile(run, kept, place):
    sizes = kept.sizes()
    run.journal.write_bytes(run.journal.read_bytes() + b"x\n")
    kept.keep(KEYS, sizes)
    assert not place.exists()


def test_nothing_is_kept_of_damaged_journals(run, place):
    whole = bytearray(run.journal.read_bytes())
    whole[len(whole) // 2] ^= 1
    run.journal.write_bytes(whole)
    assert outcome(run).report("finished")["damage"]
    assert not place.exists()


def test_a_report_does_without_where_nothing_can_be_kept(run, place):
    place.mkdir()
    told = outcome(run).report("finished")
    assert told == report_of(run.run, run.job, status="finished")
    assert json.dumps(told)
    assert [path.name for path in place.parent.iterdir() if path.suffix != ".jsonl"] == [NAME]
