"""The report of a run that skips batches from a step on, and of one that began as a branch."""

import pytest
from control_drive import Drive
from control_values import record
from test_curve import TINY

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.run_report import report_of
from remesh.data.building.prepare import build
from remesh.data.row_hashes import expected_digests
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.orchestrator.job.amendments import Amendment, skips_of
from remesh.orchestrator.job.job import load_job

SKIP = Amendment(step=5, key="data.skip", old="", new="5..6")
LAST = 8
ORIGIN = "runs/first/step-00000003.gen-1.start-0"


class Journalled(Drive):
    """Writes down what it does, as a controller does."""

    def __init__(self, folder, **options):
        self.writer = None
        super().__init__(**options)
        self.writer = JournalWriter(folder, 1, self.controller.options)
        for event in self.before:
            self.writer.event(event, 0.0)

    def do(self, *events, after_s=0.01):
        if self.writer is None:
            self.before = [*getattr(self, "before", []), *events]
        else:
            for event in events:
                self.writer.event(event, self.now_s)
        return super().do(*events, after_s=after_s)


@pytest.fixture
def job(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 200)
    build(str(tmp_path / "text.txt"), tmp_path / "data", 16)
    return load_job(TINY, ["train.seq_len=16", f"data.dir={tmp_path / 'data'}"])


def trained(folder, job, *, skipped_from, first=0, **options):
    """The samples of a run whose steps from `skipped_from` on have left out batches."""
    drive = Journalled(folder, steps=LAST, max_dp=2, **options)
    drive.ready()
    drive.train()
    digests = expected_digests(folder / "data", global_batch=job.train.global_batch, seed=0)
    done = [
        record(
            step,
            samples=job.train.global_batch,
            digest=digests.of(step, skips_of(SKIP.new if step >= skipped_from else "")).hex(),
        )
        for step in range(first + 1, LAST + 1)
    ]
    drive.all(ev.StepsDone, workers=drive.members[:1], records=tuple(done))
    return report_of(RunFolder(folder), job, status="running")


def test_each_step_is_proven_with_the_skips_that_held_for_it(tmp_path, job):
    """inputs B1."""
    report = trained(tmp_path, job, skipped_from=5, amendments=(SKIP,))
    assert (report["samples"]["lost"], report["samples"]["repeated"]) == (0, 0)
    assert report["samples"]["consumed"] == LAST * 24


def test_a_step_that_skipped_when_it_should_not_is_told(tmp_path, job):
    report = trained(tmp_path, job, skipped_from=5)
    assert report["samples"]["lost"] == (LAST - 4) * 24


def test_a_branch_counts_its_own_steps(tmp_path, job):
    resume = CheckpointState(step=3, name="step-00000003.gen-1.start-0")
    more = {"resume": resume, "origin": ORIGIN, "last_generation": 1, "amendments": (SKIP,)}
    report = trained(tmp_path, job, skipped_from=5, first=3, **more)
    assert report["samples"]["expected"] == report["samples"]["consumed"] == (LAST - 3) * 24
    assert report["samples"]["lost"] == 0
    assert report["losses"] == [None] * 3 + [1.0] * (LAST - 3)
