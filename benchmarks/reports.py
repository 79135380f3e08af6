"""The report of a long run: what it costs at the end, and what a step adds to it on the way.

The peer is a budget: seconds of one processor, bytes. A command that drives a run folds its account
as the journal grows, and keeps what it comes to beside the journal; one that comes later proves by
hashes that it is of this journal.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring.rows import Row, cost, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # their small run

from control_values import record
from finished_run import BATCH, WrittenDrive, made_run

from remesh.actors.jobs.finishing import Outcome
from remesh.actors.run.account_tail import AccountTail
from remesh.actors.run.folder import RunFolder
from remesh.data.row_hashes import expected_digests
from remesh.data.skips import Skips
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.job.job import Job

TOGETHER = 50  # steps that are told at once: a second of quick ones
REPORT_S, STEP_US, STEP_BYTES = 1.0, 100.0, 130.0  # the budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the steps")
    steps = 10_000 if parser.parse_args().quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        job = trained(Path(folder), steps)
        rows = costs(RunFolder(Path(folder) / "long"), job, steps)
    report("reports", rows)


def trained(folder: Path, steps: int) -> Job:
    """The job of a run whose journal tells of so many steps, in a folder called long."""
    job = made_run(folder).job
    settings = job.train.model_copy(update={"steps": steps})
    job = job.model_copy(update={"train": settings})
    (folder / "long").mkdir()
    drive = WrittenDrive(RunFolder(folder / "long"), job, {})
    digests = expected_digests(Path(job.data.dir), global_batch=BATCH, seed=job.job.seed)
    drive.ready()
    drive.train()
    for first in range(1, steps + 1, TOGETHER):
        told = tuple(
            record(
                step,
                samples=BATCH,
                digest=digests.of(step, Skips()).hex(),
                ended_s=drive.now_s,
            )
            for step in range(first, min(first + TOGETHER, steps + 1))
        )
        worker = drive.members[0]
        # Not through the drive, which would remember every one of them.
        event = ev.StepsDone(worker=worker, generation=1, records=told)
        drive.writer.event(event, drive.now_s)
        drive.controller.handle(event, drive.now_s)
    return job


def costs(folder: RunFolder, job: Job, steps: int) -> list[Row]:
    first, again = (
        Outcome(folder=folder, job=job, tail=AccountTail(folder, job)) for _ in range(2)
    )
    assert first.tail
    fold_s = taken_s(lambda: folded(first.tail))
    report_s = taken_s(lambda: first.report("finished"))
    again_s = taken_s(lambda: again.report("finished"))
    told = again.report("finished")
    assert told["samples"]["consumed"] == steps * BATCH
    assert (told["samples"]["lost"], told["samples"]["repeated"]) == (0, 0)
    num_bytes = sum(path.stat().st_size for path in (folder.path / "journal").iterdir())
    print(f"{num_bytes / 1e6:.0f} MB of journals, and {len(told['losses']):,} losses")
    case = f"{steps:,} steps"
    return [
        cost(f"report of {case}", "budget", (report_s, REPORT_S), "s CPU"),
        cost(f"{case}, asked for again", "budget", (again_s, REPORT_S), "s CPU"),
        cost("folding a step before it", "budget", (fold_s / steps * 1e6, STEP_US), "us CPU"),
        cost("memory of a step", "budget", (first.tail.num_bytes / steps, STEP_BYTES), "bytes"),
    ]


def folded(tail: AccountTail) -> None:
    while tail.read_on():
        pass


def taken_s(work: Callable[[], object]) -> float:
    """Seconds of a processor."""
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


if __name__ == "__main__":
    main()
