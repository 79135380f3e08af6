"""The ladder of a job: which meshes its run may have, which one some workers get, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.ladder import Flight, Ladder
from remesh.orchestrator.plan.rung import Rung, Unit
from remesh.orchestrator.plan.staging import staging_of
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count
from remesh.parallel.plan.leaves import LeafTree, efficiency
from remesh.parallel.plan.node_deals import deal_evenly, deal_nodes
from remesh.parallel.plan.pieces import streams
from remesh.parallel.plan.schedules.catalogue import schedules_of
from remesh.parallel.plan.schedules.replica_slots import slots_alone
from remesh.parallel.plan.schedules.timing.timeline import time_line
from remesh.parallel.plan.shares import replicated_heads

ALL_OF_THEM = 0
MOST_STAGES = 8  # that are told one by one
MOST_PASSES = 5000  # through the stages of a pipeline, whose times are worked out one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """Nodes with so many places for workers each."""

    nodes: int
    places: int

    @property
    def workers(self) -> int:
        return self.nodes * self.places

    def units(self, unit: Unit) -> int:
        return unit.room(self.nodes, self.places)

    def __str__(self) -> str:
        return count(self.workers, "worker")


def ladder_of(job: Job) -> Ladder:
    """Every mesh that the run of a job may have, whatever the cluster has room for."""
    batch = job.batch_cut
    falls = [fallen.shared_by({}, batch) for fallen in job.falls()]
    flights = tuple(
        _flight(fallen, stages)
        for fallen in falls
        for stages in fallen.pp_degrees
        if fallen.replicas(stages)
    )
    sharing = dict.fromkeys(reason for fallen in falls for reason in _ladder_reasons(fallen))
    own = [flight for flight in flights if flight.bit_key == flights[0].bit_key]
    reasons = (*sharing, *_fall_reasons(flights), *_pipeline_reasons(job, own))
    return Ladder(flights=flights, num_leaves=job.num_leaves, reasons=reasons)


def _flight(job: Job, stages: int) -> Flight:
    """The meshes whose pipelines have so many stages."""
    parallel, zero = job.parallel, job.zero
    return Flight.of_units(
        replicas=job.replicas(stages),
        unit=Unit(workers=job.stage_workers, on_one_node=_stays_together(job)),
        copies=parallel.cp,
        shards=(zero.group * parallel.cp or ALL_OF_THEM) if zero.stage else 1,
        staging=staging_of(job, stages),
        bucket_elements=job.bucket_elements,
        bit_key=job.bit_key,
    ).sharing_experts(parallel.ep)


def _stays_together(job: Job) -> bool:
    """Whether the workers that share a layer of a replica have to be on one node.

    A ring of single workers may lead over several: what goes round travels while they compute.
    """
    parallel = job.parallel
    return not parallel.allow_cross_node_tp and (parallel.tp > 1 or parallel.cp == 1)


def rung_for(job: Job, ladder: Ladder, room: NodeRoom) -> Rung:
    """The mesh that the run has when all these workers are there.

    Raises: UserError if they are too few.
    """
    rung = ladder.largest(room.units, at_least=job.elastic.min_workers)
    if rung is None:
        raise UserError(_too_few(job, ladder, room))
    return rung


def no_room(ladder: Ladder, room: NodeRoom) -> str:
    """What to say of nodes that are started for a run and have no room for its smallest mesh."""
    smallest = ladder.smallest(1)
    unit = smallest.unit
    apart = unit.workers == 1 or not unit.on_one_node
    where = "" if apart else f", each {unit.workers} of them on one node"
    also = ", parallel.cp" if smallest.layout.cp > 1 else ""
    also += ", parallel.pp" if smallest.stages > 1 else ""
    return (
        f"--nodes {room.nodes} with --workers-per-node {room.places} has no room for a mesh of "
        f"{count(smallest.workers, 'worker')}{where}; use more, or a smaller parallel.tp{also} or "
        f"zero.group"
    )


def reasons(job: Job, ladder: Ladder, rung: Rung, room: NodeRoom) -> tuple[str, ...]:
    """What each replica of that mesh does, what it is made of, and who is left over or missing."""
    schedule = ladder.schedule_reason(rung)
    found = (dealt(job, rung), schedule, *ladder.reasons, *_left_over(ladder, rung, room))
    return tuple(reason for reason in found if reason)


def dealt(job: Job, rung: Rung) -> str:
    """Such as "dp=4: 12 leaves of 1 microbatch, 3 each, 100% efficient"; of pipelines also which
    share of its time a worker idles, were all stages to take as long.
    """
    size = job.num_microbatches // job.num_leaves
    leaves = f"{count(job.num_leaves, 'leaf')} of {count(size, 'microbatch')}"
    share = f"{_efficiency(job, rung):.0%} efficient"
    idle = _idle_share(job, rung)
    idles = "" if idle is None else f"; {rung.schedule} idles {idle:.0%} of the time on even stages"
    return f"dp={rung.layout.dp}: {leaves}, {_each(job, rung)} each, {share}{idles}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRow:
    """A line of the table: `leaves` of each replica, the share of time it computes, what a worker
    sends for gradients, as a multiple of an all-reduce of them, None where it sends nothing, and
    which share of the state changes hands as the mesh grows to it from the rung below, None for the
    lowest.
    """

    rung: Rung
    leaves: str
    efficiency: float
    sent: float | None
    moves: float | None


def rows(job: Job, ladder: Ladder) -> Iterator[RungRow]:
    """Every rung, the lowest first."""
    below: Rung | None = None
    for rung in ladder.rungs():
        yield RungRow(
            rung=rung,
            leaves=_each(job, rung),
            efficiency=_efficiency(job, rung),
            sent=_sent(job, rung),
            moves=None if below is None else 1.0 - rung.cut.kept(below.cut),
        )
        below = rung


def _efficiency(job: Job, rung: Rung) -> float:
    if not rung.leaves:
        together = rung.layout.replicas_together
        return efficiency(job.num_leaves // together, rung.layout.dp // together)
    return job.num_leaves / (rung.layout.dp * max(rung.leaves))


def _sent(job: Job, rung: Rung) -> float | None:
    """An all-reduce is one exchange of pieces and one gathering of their sums; here as many nodes
    or leaves are exchanged as the worker has that has the most.
    """
    dp, cp = rung.layout.dp, rung.layout.cp
    if dp * cp == 1:
        return None
    together = rung.layout.replicas_together
    if streams(job.zero.stage, rung.shards) or (job.elastic.same_bits and together > 1):
        exchanged = max(rung.leaves, default=rung.most_leaves(job.num_leaves))
    elif job.elastic.same_bits:
        tree = LeafTree(num_leaves=job.num_leaves, num_segments=job.num_segments)
        dealt = deal_nodes(tree, rung.leaves) if rung.leaves else deal_evenly(tree, dp)
        exchanged = max(map(len, dealt))
    else:
        exchanged = 1
    return (exchanged + 1) / 2


def _idle_share(job: Job, rung: Rung) -> float | None:
    """Of the pipelines with most microbatches; None of one that is none, or too long to draw."""
    most = max(rung.leaves, default=rung.most_leaves(job.num_leaves))
    microbatches = most * (job.num_microbatches // job.num_leaves)
    pipeline = rung.cut.pipeline
    if rung.stages == 1 or microbatches * pipeline.num_stages > MOST_PASSES:
        return None
    shares_experts = rung.layout.ep > 1
    slots = slots_alone(microbatches)
    schedules = schedules_of(rung.schedule, pipeline, slots, shares_experts=shares_experts)
    return float(time_line(schedules).bubble)


def _each(job: Job, rung: Rung) -> str:
    """Such as "3", "2 or 3"."""
    if rung.leaves:
        counts = sorted(set(rung.leaves))
    else:
        together = rung.layout.replicas_together
        fewest, more = divmod(job.num_leaves // together, rung.layout.dp // together)
        counts = [fewest, fewest + 1] if more else [fewest]
    return " or ".join(map(str, counts))


def _too_few(job: Job, ladder: Ladder, room: NodeRoom) -> str:
    seen = f"{room} {'is' if room.workers == 1 else 'are'} fewer than"
    needed = ladder.smallest(job.elastic.min_workers).workers
    if needed <= job.elastic.min_workers:
        return f"{seen} elastic.min_workers = {needed}; add workers or lower it"
    sharing = [f"parallel.tp = {job.parallel.tp}"]
    if job.parallel.cp > 1:
        sharing.append(f"parallel.cp = {job.parallel.cp}")
    if (stages := min(job.pp_degrees)) > 1:
        sharing.append(f"parallel.pp = {stages}")
    if job.parallel.ep > 1:
        sharing.append(f"parallel.ep = {job.parallel.ep}")
    if job.zero.group:
        sharing.append(f"zero.group = {job.zero.group}")
    groups = " and ".join(sharing)
    return f"{seen} the {needed} of the smallest mesh with {groups}; add workers or lower these"


def _ladder_reasons(job: Job) -> Iterator[str]:
    """What is the same at every rung of these degrees."""
    tp, cp, zero = job.parallel.tp, job.parallel.cp, job.zero
    if cp > 1:
        where = "on one node" if _stays_together(job) else "which may straddle nodes"
        workers = count(job.stage_workers, "worker")
        tokens = count(job.train.seq_len // cp, "token")
        each = f"each {tp} of them have" if tp > 1 else "each has"
        yield f"cp={cp}: a sequence is on {workers}, {where}; {each} {tokens} of it"
    if tp > 1:
        where = "which may straddle nodes" if job.parallel.allow_cross_node_tp else "on one node"
        yield f"tp={tp}: as the job says; groups of {count(tp, 'worker')}, {where}"
    if (times := replicated_heads(tp, job.model.num_kv_heads)) > 1:
        yield (
            f"each of the {job.model.num_kv_heads} kv heads is replicated on "
            f"{count(times, 'rank')} of a tp group: parallel.tp = {tp} is more than there are"
        )
    if (ep := job.parallel.ep) > 1:
        each = count(job.model.num_experts // ep, "expert")
        who = count(ep, "worker" if job.parallel.cp > 1 else "replica")
        yield f"ep={ep}: {who} have all experts between them, {each} each"
    if zero.stage:
        sharing = f"each {count(zero.group, 'replica')}" if zero.group else "all replicas"
        yield f"ZeRO stage {zero.stage}: {sharing} share one copy"


def _fall_reasons(flights: Sequence[Flight]) -> Iterator[str]:
    """That the bits of some meshes are others, and when they are taken."""
    if others := len({flight.bit_key for flight in flights}) - 1:
        kinds = "other degrees" if others == 1 else f"{others} kinds of other degrees"
        yield f"{kinds} change the bits: taken where no mesh of the job's own has room"


def _pipeline_reasons(job: Job, flights: Sequence[Flight]) -> Iterator[str]:
    """How the layers lie on the pipelines, and what of the job's wishes holds for some only."""
    piped = [flight for flight in flights if flight.lowest.pp > 1]
    for flight in piped:
        pipeline = flight.staging.pipeline
        stages = pipeline.num_stages
        on = f", on {count(pipeline.ranks, 'worker')}" if stages > pipeline.ranks else ""
        layers = _layers_in_words(pipeline.sizes(job.model.num_layers))
        yield f"pp={pipeline.ranks}: {flight.staging.schedule}, {stages} stages of {layers}{on}"
    others = [flight for flight in piped if flight.lowest.pp != job.parallel.pp]
    if job.parallel.layers and others:
        yield (
            f"parallel.layers holds for pp={job.parallel.pp}: other pipelines are cut as evenly as "
            "can be"
        )


def _layers_in_words(sizes: Sequence[int]) -> str:
    """Such as "4 layers each", "8, 8, 7 and 7 layers"."""
    fewest, most = min(sizes), max(sizes)
    if fewest == most:
        return f"{count(most, 'layer')} each"
    if len(sizes) > MOST_STAGES:
        return f"{fewest} to {most} layers"
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]} layers"


def _left_over(ladder: Ladder, rung: Rung, room: NodeRoom) -> Iterator[str]:
    if surplus := room.workers - rung.workers:
        workers = count(surplus, "worker", "stays", "stay")
        yield f"{workers} spare: {ladder.spare_reason(rung)}"
    if fewer := ladder.highest.layout.dp - rung.layout.dp:
        yield f"{count(fewer, 'replica')} fewer than the job would use"
