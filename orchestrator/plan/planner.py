"""Which layout a number of workers gets, what each replica then does, and why."""

from dataclasses import dataclass

from remesh.orchestrator.errors import UserError
from remesh.orchestrator.job import Job
from remesh.parallel.layout import Layout
from remesh.parallel.leaves import deal, efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`leaves` counts those of each replica. `efficiency` is the share of time not spent waiting
    for the fullest replica, in (0, 1].
    """

    layout: Layout
    leaves: tuple[int, ...]
    microbatches_per_leaf: int
    efficiency: float
    reasons: tuple[str, ...]


def plan(job: Job, num_workers: int) -> Plan:
    """The layout of a job on `num_workers` workers.

    Raises: UserError if they are too few.
    """
    if num_workers < job.elastic.min_workers:
        raise UserError(
            f"{num_workers} workers are fewer than elastic.min_workers = "
            f"{job.elastic.min_workers}; add workers or lower it"
        )
    dp = min(num_workers, job.max_dp)
    dealt = tuple(len(span) for span in deal(job.num_leaves, dp))
    return Plan(
        layout=Layout(dp=dp),
        leaves=dealt,
        microbatches_per_leaf=job.num_microbatches // job.num_leaves,
        efficiency=efficiency(job.num_leaves, dp),
        reasons=tuple(_reasons(job, num_workers, dealt)),
    )


def _reasons(job: Job, num_workers: int, dealt: tuple[int, ...]) -> list[str]:
    dp = len(dealt)
    each = f"{dealt[0]} each" if len(set(dealt)) == 1 else f"{dealt[-1]} or {dealt[0]} each"
    size = job.num_microbatches // job.num_leaves
    leaves = f"{job.num_leaves} leaves of {size} microbatch{'' if size == 1 else 'es'}"
    reasons = [f"dp={dp}: {leaves}, {each}, {efficiency(job.num_leaves, dp):.0%} efficient"]
    if num_workers > dp:
        reasons.append(f"{num_workers - dp} workers stay spare: the job has at most {dp} replicas")
    if num_workers < job.max_dp:
        reasons.append(f"{job.max_dp - dp} replicas fewer than the job would use")
    return reasons
