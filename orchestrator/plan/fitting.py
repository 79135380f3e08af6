"""Whether there is room for a run: what its ranks, its checkpoints and its workers would take.

What cannot be is refused before anything starts, what will be slow or short is a warning. The
estimates are those of a busy moment: a run whose largest mesh does not fit, and a smaller one does,
is warned of and starts.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.planner import NodeRoom
from remesh.orchestrator.plan.rung import Rung
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import byte_text, count
from remesh.parallel.plan.memory.rank_memory import (
    NUM_SLOTS,
    PROCESS_BYTES,
    STATE_BYTES,
    RankMemory,
    rank_memory,
)
from remesh.parallel.plan.memory.rank_sizes import RankSizes, num_parameters
from remesh.parallel.plan.model_config import ModelConfig

NODE_BYTES = 200 << 20  # what Ray takes on a node that is started here
MOST_A_PROCESSOR = 32  # processes and threads: beyond it nothing starts in time
_LAST_STAGE = 3  # of ZeRO
_SIZES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine has. `free_bytes` of memory, `disk_bytes` free for checkpoints kept here.

    `shared_bytes` are free in shared memory. What is None is not known, or not of this machine.
    """

    processors: int
    free_bytes: int | None = None
    disk_bytes: int | None = None
    shared_bytes: int | None = None


def memory_of(job: Job, rung: Rung) -> RankMemory:
    """What one rank of this mesh needs at the fullest moment."""
    found = rank_memory(sizes_of(job, rung))
    return replace(
        found,
        saving=checkpoint_bytes(job) // rung.workers,
        snapshots=_snapshot_bytes(job, rung, found),
    )


def checkpoint_bytes(job: Job) -> int:
    """Of one checkpoint: each byte of the state once."""
    return STATE_BYTES * num_parameters(_model(job))


def check_machine(job: Job, ladder: Ladder, room: NodeRoom, machine: Machine) -> tuple[str, ...]:
    """Warnings about a run of these nodes, all on one machine.

    Raises: UserError if there cannot be one.
    """
    _check_processors(job, ladder, room, machine)
    warnings = [_memory_warning(job, ladder, room, machine)]
    _check_disk(job, machine)
    warnings += [_processor_warning(job, ladder, room, machine)]
    warnings += [_disk_warning(job, machine), _snapshot_warning(job, ladder, machine)]
    return tuple(warning for warning in warnings if warning)


def check_nodes(job: Job, ladder: Ladder, nodes: Collection[int]) -> None:
    """Whether some node of a cluster has the memory for a rank; `nodes` are the bytes of each.

    Raises: UserError if none has. Of a cluster without nodes nothing is said: they may come.
    """
    if not nodes:
        return
    least = min(_ranks(job, ladder), key=needed_bytes)
    if needed_bytes(least) > max(nodes):
        raise UserError(
            f"{_needs(least)}; the largest node of the cluster has {byte_text(max(nodes))}; "
            f"{_cures(job, least)}"
        )


def check_change(
    job: Job, rung: Rung, before: tuple[Job, Rung] | None, free_bytes: int | None
) -> None:
    """Whether a machine on which all nodes are has the memory for a mesh of this job, in the place
    of one of a job `before`, whose memory it gets.

    Raises: UserError if it has not.
    """
    freed = _all_ranks(*before) if before else 0
    needed = _all_ranks(job, rung) - freed
    if free_bytes is not None and needed > free_bytes:
        memory = memory_of(job, rung)
        beside = ", beside what the present mesh takes" if before else ""
        raise UserError(
            f"{_needs(memory)}; this machine has {byte_text(free_bytes)} free for "
            f"{count(rung.workers, 'worker')}{beside}; {_cures(job, memory)}"
        )


def needed_bytes(memory: RankMemory) -> int:
    """Without snapshots, of which a vault keeps as many as there is room for."""
    return memory.total - memory.snapshots


def told(memory: RankMemory) -> str:
    """The parts of it that count, the largest first."""
    parts = sorted(memory.parts.items(), key=lambda part: -part[1])
    counted = [(name, size) for name, size in parts if 50 * size > memory.total]
    return ", ".join(f"{name} {byte_text(size)}" for name, size in counted)


def _memory_warning(job: Job, ladder: Ladder, room: NodeRoom, machine: Machine) -> str | None:
    """Raises: UserError if not even the mesh that needs least has room."""
    if machine.free_bytes is None:
        return None
    apart = room.nodes * NODE_BYTES + job.elastic.spares * PROCESS_BYTES
    if _all_ranks(job, ladder.highest) + apart <= machine.free_bytes:
        return None
    rungs = sorted(ladder.rungs(), key=lambda rung: -rung.workers)
    needs = [(_all_ranks(job, rung) + apart, rung) for rung in rungs]
    least, smallest = min(needs, key=lambda need: need[0])
    free = f"this machine has {byte_text(machine.free_bytes)} free"
    if least > machine.free_bytes:
        workers = f" for {count(smallest.workers, 'worker')} and {count(room.nodes, 'node')}"
        memory = memory_of(job, smallest)
        raise UserError(f"{_needs(memory)}; {free}{workers}; {_cures(job, memory)}")
    fitting = next(rung for need, rung in needs if need <= machine.free_bytes)
    return (
        f"{needs[0][1].layout} needs about {byte_text(needs[0][0])} and {free}; the largest mesh "
        f"that fits is {fitting.layout}: set elastic.max_workers = {fitting.workers}"
    )


def _check_processors(job: Job, ladder: Ladder, room: NodeRoom, machine: Machine) -> None:
    most = MOST_A_PROCESSOR * machine.processors
    has = count(machine.processors, "processor")
    workers = _num_workers(job, ladder, room)
    if room.nodes + workers > most:
        raise UserError(
            f"{count(room.nodes, 'node')} with {count(workers, 'worker')} on {has}: at most {most} "
            f"processes start in time; use fewer --nodes, --workers-per-node or elastic.spares"
        )
    if workers * job.train.threads > most:
        raise UserError(
            f"train.threads = {job.train.threads} for {count(workers, 'worker')} on {has}; use at "
            f"most {max(1, most // workers)}"
        )


def _processor_warning(job: Job, ladder: Ladder, room: NodeRoom, machine: Machine) -> str | None:
    workers, threads = _num_workers(job, ladder, room), job.train.threads
    busy = workers - job.elastic.spares
    if busy * threads <= machine.processors:
        return None
    each = f" of {count(threads, 'thread')} each" if threads > 1 else ""
    return (
        f"{count(busy, 'worker')}{each} on {count(machine.processors, 'processor')}: they take "
        f"turns, and are no faster than fewer"
    )


def _num_workers(job: Job, ladder: Ladder, room: NodeRoom) -> int:
    return min(room.workers, ladder.highest.workers) + job.elastic.spares


def _check_disk(job: Job, machine: Machine) -> None:
    size = checkpoint_bytes(job)
    if machine.disk_bytes is not None and size > machine.disk_bytes:
        raise UserError(
            f"a checkpoint has {byte_text(size)} and {job.checkpoint.url or job.run_dir} has "
            f"{byte_text(machine.disk_bytes)} free; make room, or set checkpoint.dir to a larger "
            f"disk"
        )


def _disk_warning(job: Job, machine: Machine) -> str | None:
    """One more than are kept: the oldest goes when the newest is whole."""
    table = job.checkpoint
    made = -(-job.train.steps // table.every)
    kept = min(made, table.keep + table.keep_best + 2)
    if table.keep_every:
        kept = min(made, kept + job.train.steps // table.keep_every)
    size = kept * checkpoint_bytes(job)
    if machine.disk_bytes is None or size <= machine.disk_bytes:
        return None
    return (
        f"{count(kept, 'checkpoint')} of {byte_text(checkpoint_bytes(job))} each have "
        f"{byte_text(size)} together, and {table.url or job.run_dir} has "
        f"{byte_text(machine.disk_bytes)} free; lower checkpoint.keep"
    )


def _snapshot_warning(job: Job, ladder: Ladder, machine: Machine) -> str | None:
    rung = ladder.highest
    size = memory_of(job, rung).snapshots * rung.workers
    if machine.shared_bytes is None or size <= machine.shared_bytes:
        return None
    return (
        f"snapshots take up to {byte_text(size)} of /dev/shm, which has "
        f"{byte_text(machine.shared_bytes)} free: fewer are kept, or none; set "
        f"checkpoint.vault_bytes, or checkpoint.snapshot_every = 0"
    )


def _snapshot_bytes(job: Job, rung: Rung, memory: RankMemory) -> int:
    """Slots of what nobody else holds, here and at the buddy."""
    single = rung.shards == rung.layout.num_data
    if job.checkpoint.snapshot_every == 0 or not single or rung.cut.is_one:
        return 0
    return 2 * NUM_SLOTS * (memory.parameters + memory.moments)


def _ranks(job: Job, ladder: Ladder) -> Iterator[RankMemory]:
    for flight in ladder.flights:
        for rung in {flight.rung(flight.lowest.dp), flight.highest}:
            yield memory_of(job, rung)


def _all_ranks(job: Job, rung: Rung) -> int:
    return rung.workers * needed_bytes(memory_of(job, rung))


def _needs(memory: RankMemory) -> str:
    return f"a rank would need {byte_text(needed_bytes(memory))}: {told(memory)}"


def _cures(job: Job, memory: RankMemory) -> str:
    """What makes the largest part smaller."""
    largest = max(memory.parts, key=lambda name: memory.parts[name])
    if largest == "process":
        return "use fewer workers: lower elastic.max_workers, --nodes or elastic.spares"
    if largest in ("activations", "passing", "gaps"):
        again = "" if job.train.recompute == "full" else ', or set train.recompute = "full"'
        return (
            f"lower train.microbatch, train.seq_len or model.num_layers, raise parallel.cp{again}"
        )
    shared = "parallel.tp, parallel.pp or zero.stage"
    if job.zero.stage == _LAST_STAGE:
        shared = "parallel.tp or parallel.pp"
    return f"lower model.width or model.num_layers, or raise {shared}"


def _model(job: Job) -> ModelConfig:
    return ModelConfig(seq_len=job.train.seq_len, **job.model.model_dump())


def sizes_of(job: Job, rung: Rung) -> RankSizes:
    """What the memory of its ranks follows from."""
    train, microbatches_per_leaf = job.train, job.num_microbatches // job.num_leaves
    most_leaves = max(rung.leaves, default=rung.most_leaves(job.num_leaves))
    return RankSizes(
        model=_model(job),
        dp=rung.layout.dp,
        tp=rung.layout.tp,
        ep=rung.layout.ep,
        cp=rung.layout.cp,
        shards=rung.shards,
        stage=job.zero.stage,
        bucket_elements=job.bucket_elements,
        num_leaves=job.num_leaves,
        num_segments=job.num_segments,
        microbatches_per_leaf=microbatches_per_leaf,
        microbatch=train.microbatch,
        compute_bytes=_SIZES[train.dtype],
        gradient_bytes=_SIZES[train.grad_dtype],
        keep_gathered=job.zero.keep_gathered,
        sequence=job.parallel.sequence,
        same_bits=job.elastic.same_bits,
        recompute=train.recompute,
        recompute_every=train.recompute_every,
        pipeline=rung.cut.pipeline,
        schedule=rung.schedule,
        num_microbatches=most_leaves * microbatches_per_leaf,
    )
