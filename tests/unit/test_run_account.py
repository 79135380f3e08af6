"""The account of a run, folded as it trains: the same as that of its whole journals (speed 4)."""

from itertools import pairwise

import pytest
from control_values import record
from finished_run import BATCH, STEPS, WrittenDrive, finished_run
from hypothesis import given
from hypothesis import strategies as st

from remesh.actors.history.journal_files import FOLDER
from remesh.actors.history.journal_reading import read_history
from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.history.step_rows import StepRows
from remesh.actors.run.account_tail import AccountTail
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.run_report import report_of
from remesh.orchestrator.accounts.ledger import Ledger, Span
from remesh.orchestrator.control.journal import LinePlace
from remesh.orchestrator.control.memory.lineage import Lineage
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState

MOST_STEPS = 12


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path)


class Growing:
    """A run's journals as they are written: so many bytes of one file after the other."""

    def __init__(self, run, folder):
        self.folder = RunFolder(folder)
        (folder / FOLDER).mkdir(parents=True)
        self.files = sorted((run.run_dir / FOLDER).glob("*.jsonl"))

    def grow(self, total_bytes):
        for path in self.files:
            whole = path.read_bytes()
            if total_bytes > 0:
                (self.folder.path / FOLDER / path.name).write_bytes(whole[:total_bytes])
            total_bytes -= len(whole)

    @property
    def size(self):
        return sum(path.stat().st_size for path in self.files)


@pytest.mark.parametrize("pieces", [1, 2, 7, 400])
def test_an_account_folded_in_pieces_is_that_of_the_whole_journals(run, tmp_path, pieces):
    growing = Growing(run, tmp_path / "growing")
    tail = AccountTail(growing.folder, run.job)
    for piece in range(1, pieces + 1):
        growing.grow(growing.size * piece // pieces)
        tail.read_on()
    assert tail.report("finished") == report_of(growing.folder, run.job, status="finished")


def test_a_report_reads_nothing_that_was_folded_before(run):
    """speed 4: a report of a million steps took as long as they had taken each."""
    tail = AccountTail(run.run, run.job)
    while tail.read_on():
        pass
    folded = tail.num_lines
    assert folded == len(run.journal.read_bytes().splitlines()) - 1
    assert tail.report("finished")["samples"]["consumed"] == STEPS * BATCH
    assert tail.num_lines == folded


def second_start(run, *, lost=()):
    """The run is taken up from its first checkpoint by another start."""
    place, journal = run.run, run.run_dir / FOLDER
    resume = CheckpointState(step=4, name=run.checkpoint(4).name)
    more = {"resume": resume, "last_generation": 1, "incarnation": 2}
    drive = WrittenDrive(place, run.job, {}, digest=None, **more)
    drive.ready()
    drive.train()
    for step in range(5, 9):
        digest = "0" * 40 if step in lost else drive.digest(run.job, step)
        done = record(step, digest=digest, samples=BATCH, ended_s=drive.now_s)
        drive.do(ev.StepsDone(worker=drive.members[0], generation=2, records=(done,)))
    return journal


def test_later_starts_are_folded_on_top_of_earlier_ones(run, tmp_path):
    second_start(run, lost=(6,))
    growing = Growing(run, tmp_path / "growing")
    tail = AccountTail(growing.folder, run.job)
    for piece in range(50):
        growing.grow(growing.size * piece // 49)
        tail.read_on()
    told = tail.report("running")
    assert told == report_of(growing.folder, run.job, status="running")
    assert told["samples"]["lost"] == told["samples"]["repeated"] == BATCH
    assert [life["from_step"] for life in told["generations"]] == [0, 4]


@pytest.mark.parametrize("at", [0.3, 0.9])
def test_what_is_damaged_is_left_to_who_reads_all(run, at):
    whole = bytearray(run.journal.read_bytes())
    whole[int(at * len(whole))] ^= 1
    run.journal.write_bytes(whole)
    tail = AccountTail(run.run, run.job)
    assert tail.report("finished") is None
    assert report_of(run.run, run.job, status="finished")["damage"]


@pytest.fixture
def begun(run, tmp_path):
    """The first lines of the run's journal, in a folder of their own."""
    lines = run.journal.read_bytes().splitlines(keepends=True)
    first = tmp_path / "begun"
    (first / FOLDER).mkdir(parents=True)
    (first / FOLDER / run.journal.name).write_bytes(b"".join(lines[:6]))
    (start,) = read_history(first).starts
    return RunFolder(first), start


def test_a_second_controller_goes_on_with_the_lines_of_the_first(run, begun):
    folder, start = begun
    tail = AccountTail(folder, run.job)
    tail.read_on()
    JournalWriter(folder.path, 2, start.options, continued=start).event(ev.Tick(), 1.0)
    assert tail.report("running") == report_of(folder, run.job, status="running")
    assert tail.num_lines == 6


def test_lines_that_do_not_count_are_left_to_who_reads_all(run, begun):
    """A second controller goes on from fewer lines than the first one had written."""
    JournalWriter(run.run.path, 2, begun[1].options, continued=begun[1])
    assert AccountTail(run.run, run.job).report("finished") is None


def test_an_event_that_was_set_aside_is_left_to_who_reads_all(run, begun):
    folder, start = begun
    writer = JournalWriter(folder.path, 2, start.options, continued=start)
    writer.set_aside(LinePlace(2), "ours", 1.0)
    assert AccountTail(folder, run.job).report("running") is None


def test_a_line_that_is_longer_than_what_is_read_at_once_is_read_whole(run):
    tail = AccountTail(run.run, run.job, read_bytes=50)
    assert tail.report("finished") == report_of(run.run, run.job, status="finished")


def test_steps_of_starts_that_a_later_one_knew_nothing_of_count_for_nothing(run):
    """It counts its generations from 1 again."""
    drive = WrittenDrive(run.run, run.job, {}, incarnation=2)
    drive.ready()
    drive.train()
    drive.steps(3)
    report = report_of(run.run, run.job, status="running")
    assert report["unproven_steps"] == ["4..12"]
    assert report["samples"]["consumed"] == 3 * BATCH


class Interrupting:
    """In the place of a job."""

    def __getattr__(self, name):
        raise KeyboardInterrupt


def test_a_fold_that_a_signal_cut_short_is_left_to_who_reads_all(run):
    tail = AccountTail(run.run, Interrupting())
    with pytest.raises(KeyboardInterrupt):
        tail.read_on()
    assert tail.report("finished") is None


def test_a_copy_of_a_journal_is_left_to_who_reads_all(run):
    run.journal.with_name("000009.jsonl").write_bytes(run.journal.read_bytes())
    assert AccountTail(run.run, run.job).report("finished") is None


def test_a_file_with_a_strange_name_is_left_to_who_reads_all(run):
    run.journal.with_name("notes.jsonl").write_text("{}\n")
    assert AccountTail(run.run, run.job).report("finished") is None


def test_a_dataset_that_is_gone_is_told_by_who_reads_all(run):
    (run.folder / "data" / "manifest.json").unlink()
    assert AccountTail(run.run, run.job).report("finished") is None


RECORDS = st.tuples(st.integers(1, 4), st.integers(1, MOST_STEPS), st.sampled_from("abc"))
BEGINS = st.lists(st.integers(0, MOST_STEPS), min_size=4, max_size=4)


@given(BEGINS, st.lists(RECORDS, max_size=60), st.frozensets(st.integers(1, MOST_STEPS)))
def test_rows_tell_of_any_history_what_the_ledger_does(begins, told, gone):
    """Generations that go back, records late, repeated, of abandoned steps, or wrong."""
    ledger, rows, lineage = Ledger(), StepRows(), Lineage()
    for number, from_step in enumerate(begins, 1):
        lineage.begin(number, from_step)
    for generation, step, digest in told:
        done = record(step, digest=digest, samples=3, loss=float(step * generation))
        event = ev.StepsDone(worker="w", generation=generation, records=(done,))
        ledger.note(event)
        rows.note(generation, begins[generation - 1], event.records, lambda _: "a")
    span = Span(first=0, last=MOST_STEPS, global_batch=3)
    trained = ledger.trained(lineage, span)
    unrecorded = [step for step, found in zip(span.steps, trained, strict=True) if not found]
    assert rows.unrecorded(lineage.chain, MOST_STEPS) == unrecorded
    losses = [found.did.loss if found else None for found in trained]
    assert rows.losses(lineage.chain, MOST_STEPS) == losses
    span = Span(first=0, last=MOST_STEPS, global_batch=3, unproven=gone & frozenset(unrecorded))
    assert rows.samples(lineage.chain, span) == ledger.samples(lineage, span, lambda _: "a")


def test_rows_take_the_same_memory_however_often_steps_are_trained_again():
    """speed 4: memory flat."""
    rows, sizes = StepRows(), []
    for generation in range(1, 6):
        steps = tuple(record(step, digest="a") for step in range(1, 1000))
        rows.note(generation, 0, steps, lambda _: "a")
        sizes.append(rows.num_bytes)
    assert [after - before for before, after in pairwise(sizes)] == [0] * 4
    assert sizes[0] <= 80 * 1024
