"""Remesh trains large language models on a Ray cluster that changes under it.

Names are loaded at first use: workers import `remesh.parallel` without paying for the job file.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remesh.orchestrator.job.job import Job, load_job

__all__ = ["Job", "__version__", "load_job"]


def __getattr__(name: str) -> Any:
    match name:
        case "Job" | "load_job":
            from remesh.orchestrator.job import job  # noqa: PLC0415 - see above

            return getattr(job, name)
        case "__version__":
            from importlib.metadata import version  # noqa: PLC0415

            return version("remesh")
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
