"""Remesh trains large language models on a Ray cluster that changes under it.

```python
from remesh import Job, attach, load_job, submit

job = load_job("examples/tiny.toml", ["train.steps=200"])
run = submit(job, address="http://HOST:8265")
run.wait(print)
attach("runs/tiny").losses()
```

Names are loaded at first use: workers import `remesh.parallel` without paying for the job file.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remesh.orchestrator.job.job import Job, load_job
    from remesh.runs import AttachedRun, SubmittedRun, attach, submit

__all__ = ["AttachedRun", "Job", "SubmittedRun", "__version__", "attach", "load_job", "submit"]


def __getattr__(name: str) -> Any:
    match name:
        case "Job" | "load_job":
            from remesh.orchestrator.job import job  # noqa: PLC0415 - see above

            return getattr(job, name)
        case "AttachedRun" | "SubmittedRun" | "attach" | "submit":
            from remesh import runs  # noqa: PLC0415

            return getattr(runs, name)
        case "__version__":
            from importlib.metadata import version  # noqa: PLC0415

            return version("remesh")
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
