"""What a command may not do inside a job of a Ray cluster.

Ray tells the process of a job its cluster by RAY_ADDRESS. A shell may have that set for other
programs, so alone it means nothing to Remesh. But a run without an address that starts within a job
would make a second cluster on the head, and compete there with Ray itself. Joining the cluster
unasked was the alternative; it lost, since the options that shape a cluster of one's own would then
mean nothing.

With `--working-dir` a job's folder is Ray's copy of a package, removed once no job uses it.
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from remesh.actors.jobs.entry_point import JOB_CONFIG
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import is_url

_PACKAGES = ("runtime_resources", "working_dir_files")  # as Ray names them, one in the other


def check_cluster(address: str | None) -> None:
    """Raises: UserError if this is a job and the run would start a cluster of its own."""
    if address is not None or JOB_CONFIG not in os.environ:
        return
    known = os.environ.get("RAY_ADDRESS")
    where = f"the Ray cluster at {known}" if known else "a Ray cluster"
    raise UserError(
        f"this is a job of {where}, and a run without --address starts a cluster of its own; "
        f"add --address {known or 'HOST:PORT'}, or hand the job over with remesh submit"
    )


def check_folders(job: Job) -> None:
    """Raises: UserError if Ray removes a folder of the run when its job has ended."""
    for key, folder in _folders(job):
        parts = folder.absolute().parts
        if _PACKAGES in pairwise(parts):
            raise UserError(
                f"{key}: {folder.absolute()} lies in {'/'.join(_PACKAGES)}, Ray's copy of a job's "
                f"files, which it removes after the job; give a folder that lasts and that all "
                f"nodes share with --set {key}=/FOLDER"
            )


def _folders(job: Job) -> Iterator[tuple[str, Path]]:
    yield "checkpoint.dir", job.run_dir
    if job.checkpoint.url is not None and not is_url(job.checkpoint.url):
        yield "checkpoint.url", Path(job.checkpoint.url)
    yield "data.dir", Path(job.data.dir)
