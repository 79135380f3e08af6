"""Which layout a number of workers gets, what each replica then does, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.shape import spare_reason
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.leaves import deal, efficiency
from remesh.parallel.plan.shares import replicated_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`leaves` counts those of each replica, `shard_size` replicas share one copy of the state.
    `efficiency` is the share of time not spent waiting for the fullest replica, in (0, 1].
    """

    layout: Layout
    shard_size: int
    leaves: tuple[int, ...]
    microbatches_per_leaf: int
    efficiency: float
    reasons: tuple[str, ...]


def plan(job: Job, num_workers: int) -> Plan:
    """The layout of a job on `num_workers` workers.

    Raises: UserError if they are too few.
    """
    shape, elastic = job.shape, job.elastic
    needed = shape.at_least(elastic.min_workers)
    if num_workers < needed:
        raise UserError(_too_few(job, num_workers, needed))
    layout = shape.layout(num_workers // shape.tp)
    assert layout is not None
    dealt = tuple(len(span) for span in deal(job.num_leaves, layout.dp))
    return Plan(
        layout=layout,
        shard_size=shape.shard_size(layout.dp),
        leaves=dealt,
        microbatches_per_leaf=job.num_microbatches // job.num_leaves,
        efficiency=efficiency(job.num_leaves, layout.dp),
        reasons=tuple(_reasons(job, num_workers, layout, dealt)),
    )


def _too_few(job: Job, num_workers: int, needed: int) -> str:
    seen = f"{num_workers} workers are fewer than"
    if needed <= job.elastic.min_workers:
        return f"{seen} elastic.min_workers = {needed}; add workers or lower it"
    groups = f"parallel.tp = {job.parallel.tp}"
    if job.zero.group:
        groups += f" and zero.group = {job.zero.group}"
    return f"{seen} the {needed} of the smallest mesh with {groups}; add workers or lower these"


def _reasons(job: Job, num_workers: int, layout: Layout, dealt: tuple[int, ...]) -> Iterator[str]:
    dp, shape = layout.dp, job.shape
    each = f"{dealt[0]} each" if len(set(dealt)) == 1 else f"{dealt[-1]} or {dealt[0]} each"
    size = job.num_microbatches // job.num_leaves
    leaves = f"{job.num_leaves} leaves of {size} microbatch{'' if size == 1 else 'es'}"
    yield f"dp={dp}: {leaves}, {each}, {efficiency(job.num_leaves, dp):.0%} efficient"
    if layout.tp > 1:
        yield f"tp={layout.tp}: as the job says; {layout.world_size} workers in groups on one node"
    if (times := replicated_heads(job.parallel.tp, job.model.num_kv_heads)) > 1:
        yield (
            f"each of the {job.model.num_kv_heads} kv heads is replicated on {times} ranks of a "
            f"tp group: parallel.tp = {layout.tp} is more than there are"
        )
    if (shard_size := shape.shard_size(dp)) > 1:
        yield f"ZeRO stage {job.zero.stage}: each {shard_size} replicas share one copy"
    if surplus := num_workers - layout.world_size:
        workers = "1 worker stays" if surplus == 1 else f"{surplus} workers stay"
        yield f"{workers} spare: {spare_reason(shape, layout)}"
    if dp < job.max_dp:
        yield f"{job.max_dp - dp} replicas fewer than the job would use"
