"""The process of a submitted job: it starts the run, or takes it up, and follows it to its end."""

import os

from remesh.actors.jobs.entry_point import own_submission
from remesh.cli.run_command import train
from remesh.orchestrator.job.driver_words import RunOptions


def drive_submission() -> int:
    """The exit code of the run."""
    submission = own_submission()
    options = RunOptions(address=os.environ["RAY_ADDRESS"], submission=submission.id)
    return train(submission.job(), options)
