"""The process of a job on the cluster: it drives a submitted run to its end, or asks runs there."""

import os

from remesh.actors.jobs.entry_point import own_questions, own_submission
from remesh.actors.jobs.questions import answer_all
from remesh.cli.run_command import train
from remesh.orchestrator.job.driver_words import RunOptions


def drive_submission() -> int:
    """The exit code of the run; 0 where there is none to be driven."""
    questions = own_questions()
    if questions is not None:
        answer_all(questions, _write_line)
        return 0
    submission = own_submission()
    options = RunOptions(address=os.environ["RAY_ADDRESS"], submission=submission.id)
    return train(submission.job(), options)


def _write_line(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the log of the job, which whoever sent it reads
