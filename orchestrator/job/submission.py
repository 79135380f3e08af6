"""A submission: a job file on its way to the cluster that drives it, and what it is known by there.

It travels as one text in the metadata of the Ray job, so that nothing passes through a shell and
the job can be resumed from anywhere by its id. Two alternatives lost. Arguments in the entry point
are a shell line. A working folder is copied with whatever lies beside the job file, becomes the
environment of every worker, and is collected once the job has ended.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remesh.data.building.sources import STDLIB
from remesh.orchestrator.job.curve import difference
from remesh.orchestrator.job.job import Job, parse_job
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import is_url, masked
from remesh.parallel.state.bounded_json import parse

KEY = "remesh"
# The metadata stands as JSON in the driver's environment, where a value may have 128 KiB.
MAX_BYTES = 96 << 10
_MAX_VALUES = 1 << 16  # the text of a job file counts by its commas

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One attempt at a job. `text` is the job file, `source` its name, and relative folders in it
    count from `folder`, where the command ran; `~` in them is `home`.
    """

    id: str
    attempt: int = 1
    text: str
    source: str
    overrides: tuple[str, ...] = ()
    folder: str
    home: str = ""

    @property
    def ray_id(self) -> str:
        """The name of this attempt on the cluster; an id has no dot."""
        return self.id if self.attempt == 1 else f"{self.id}.{self.attempt}"

    def job(self) -> Job:
        """The job with all its folders from the root. Raises: UserError as load_job."""
        job = parse_job(self.text, name=self.source, overrides=self.overrides, home=self.home)
        return _anchored(job, self)

    def metadata(self) -> dict[str, str]:
        """Raises: UserError if the job file is too large to travel."""
        encoded = json.dumps(asdict(self), ensure_ascii=False)
        size_bytes = len(json.dumps(encoded))
        if size_bytes > MAX_BYTES:
            raise UserError(
                f"{self.source}: {size_bytes} bytes as it travels with its overrides; a submission "
                f"has at most {MAX_BYTES}"
            )
        return {KEY: encoded, "job_name": self.job().name}


def read_metadata(metadata: Mapping[str, str] | None) -> Submission | None:
    """The submission that a Ray job came from, None if it is not one of Remesh's."""
    try:
        encoded = (metadata or {})[KEY].encode()
        values = parse(encoded, max_bytes=MAX_BYTES, max_values=_MAX_VALUES)
        return Submission(**{**values, "overrides": tuple(values["overrides"])})
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def check_id(text: str) -> str:
    """Raises: UserError with the rule."""
    if not _ID.fullmatch(text):
        raise UserError(
            f"--id {text!r}: an id has 1 to 63 letters, digits, '-' and '_', "
            f"the first a letter or a digit"
        )
    return text


def id_stem(name: str) -> str:
    """A job's name as the start of an id."""
    return name.replace(".", "-")[:48]


def submission_difference(old: Submission, new: Submission) -> str | None:
    """The keys in which the jobs of two submissions differ, with both values."""
    return difference(_flat(old.job()), _flat(new.job()))


def _flat(job: Job) -> dict[str, Any]:
    return dict(_leaves("", job.model_dump()))


def _leaves(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", masked(value) if isinstance(value, str) else value


def _anchored(job: Job, submission: Submission) -> Job:
    def rooted(folder: str | Path) -> str:
        return str(Path(submission.folder) / folder)

    source = job.data.source
    if source not in (None, STDLIB):
        source = rooted(source)
    data = job.data.model_copy(update={"dir": rooted(job.data.dir), "source": source})
    url = job.checkpoint.url
    if url is not None and not is_url(url):
        url = rooted(url)
    checkpoint = job.checkpoint.model_copy(update={"dir": rooted(job.run_dir), "url": url})
    return job.model_copy(update={"data": data, "checkpoint": checkpoint})
