"""Which schedule the replicas of a mesh follow, and how their stages lie on it.

The one that the job asks for, wherever it is legal for the microbatches that a replica gets. That
follows from the number of replicas, so each rung asks for itself; elsewhere it is 1F1B, which is
legal always. No bit depends on it.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from remesh.orchestrator.job.job import Job
from remesh.parallel.plan.pieces import shard_size, streams
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import PLAIN, legal_schedule, pipeline_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What a mesh has: a pipeline and its schedule. `reason` says why it is not the wished one."""

    schedule: str = PLAIN
    pipeline: Pipeline = field(default_factory=Pipeline)
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The schedule that is wished for, and the pipeline that it would have.

    A batch has `num_leaves` of `leaf_microbatches` each. Replicas that compute `in_rounds` all have
    as many as the one with most leaves, since the others keep it company.
    """

    schedule: str = PLAIN
    pipeline: Pipeline = field(default_factory=Pipeline)
    num_leaves: int = 0
    leaf_microbatches: int = 1
    in_rounds: bool = False

    def of(self, replicas: int, leaves: Collection[int] = (), together: int = 1) -> Staged:
        """That of a mesh of so many replicas, of which so many `together` have as many leaves;
        `leaves` are those of each, if they are uneven.
        """
        ranks = self.pipeline.ranks
        if ranks == 1:
            return Staged()
        microbatches = self.microbatches(replicas, leaves, together)
        schedule, reason = legal_schedule(self.schedule, ranks, microbatches)
        if schedule == self.schedule:
            return Staged(schedule=schedule, pipeline=self.pipeline)
        return Staged(schedule=schedule, pipeline=Pipeline(ranks=ranks), reason=reason)

    def microbatches(
        self, replicas: int, leaves: Collection[int] = (), together: int = 1
    ) -> tuple[int, ...]:
        """The different numbers that replicas have of them, the smallest first."""
        fewest, longer = divmod(self.num_leaves // together, replicas // together)
        counts = set(leaves) or {fewest, fewest + (longer > 0)}
        if self.in_rounds:
            counts = {max(counts)}
        return tuple(number * self.leaf_microbatches for number in sorted(counts) if number)


def staging_of(job: Job, ranks: int) -> Staging:
    """What a job wishes for pipelines of so many workers.

    Its own split of the layers is one of `parallel.pp` stages. Where a model has too few layers for
    all virtual stages, workers have one stage each.
    """
    schedule, pipeline = _wished(job, ranks)
    zero, cp = job.zero, job.parallel.cp
    shards = shard_size(zero.stage, zero.group, job.replicas(ranks), cp)
    return Staging(
        schedule=schedule,
        pipeline=pipeline,
        num_leaves=job.num_leaves,
        leaf_microbatches=job.num_microbatches // job.num_leaves,
        in_rounds=streams(zero.stage, shards),
    )


def _wished(job: Job, ranks: int) -> tuple[str, Pipeline]:
    if ranks == 1:
        return PLAIN, Pipeline()
    parallel, num_layers = job.parallel, job.model.num_layers
    even = pipeline_of(parallel.schedule, ranks, parallel.virtual_stages)
    if even.num_stages > num_layers:
        return PLAIN, Pipeline(ranks=ranks)
    own = parallel.layers if ranks == parallel.pp else ()
    if own in ((), even.sizes(num_layers)):
        return parallel.schedule, even
    return parallel.schedule, replace(even, layers=own)
