"""A job as the text of a job file: what `load_job` reads back as the same job."""

import json
from collections.abc import Iterator

from remesh.orchestrator.job.job import Job


def text_of(job: Job) -> str:
    """TOML with the keys that were set. A JSON value is one of TOML too, for all that keys hold."""
    return "".join(_lines(job))


def _lines(job: Job) -> Iterator[str]:
    tables = job.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    for table, keys in tables.items():
        yield f"[{table}]\n"
        for key, value in keys.items():
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
