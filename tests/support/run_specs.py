"""A start of the tiny example, as its controller is told of it."""

from pathlib import Path

from remesh.actors.orders import RunSpec
from remesh.orchestrator.job.job import load_job

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def claimed_spec(folder, run="ab12"):
    """The next start of this run in the folder, which is claimed for it."""
    claim = folder.claim(run)
    return RunSpec(
        run=run,
        job=load_job(TINY),
        folder=str(folder.path),
        data_digest="d",
        fingerprint={},
        start=claim,
        incarnation=claim,
        max_members=1,
        faults=(),
        driver_lease_s=20.0,
    )
