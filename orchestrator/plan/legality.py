"""Which degrees a model and a batch allow, in plain integers. Messages name what would work."""

from collections.abc import Iterator

from remesh.orchestrator.job.tables import (
    ModelTable,
    ParallelTable,
    TrainTable,
    ZeroTable,
    divisors,
)

TECHNIQUES = {
    "pp": "pipeline parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
}


def degree_problems(parallel: ParallelTable, model: ModelTable, train: TrainTable) -> Iterator[str]:
    """What speaks against these degrees: first those that could never fit, then those not built."""
    yield from _tensor_problems(parallel, model, train)
    if parallel.pp > model.num_layers:
        yield (
            f"parallel.pp = {parallel.pp} stages need as many layers, and model.num_layers = "
            f"{model.num_layers}; use at most {model.num_layers}"
        )
    for axis, technique in TECHNIQUES.items():
        degree = getattr(parallel, axis)
        if degree > 1:
            yield (
                f"parallel.{axis} = {degree}: {technique} is not available in this version; "
                f"leave it at 1 and use parallel.dp or parallel.tp"
            )


def zero_problem(parallel: ParallelTable, zero: ZeroTable) -> str | None:
    """Why the replicas cannot share their state in these groups."""
    if parallel.dp == "auto" or not zero.group or parallel.dp % zero.group == 0:
        return None
    return (
        f"zero.group = {zero.group} does not divide parallel.dp = {parallel.dp}; "
        f"use one of {_choices(divisors(parallel.dp))}, or 0 for all replicas"
    )


def batch_problem(train: TrainTable, *, max_dp: int, key: str, exact: bool) -> str | None:
    """Why the microbatches of a global batch cannot be dealt to `max_dp` replicas.

    `key` is what the job file says that `max_dp` follows from. `exact` asks for the same number on
    every replica: a degree that the user wrote down should multiply out, one that follows the
    cluster need not.
    """
    num_microbatches = train.global_batch // train.microbatch
    seen = (
        f"train.global_batch = {train.global_batch} in microbatches of {train.microbatch} makes "
        f"{num_microbatches}"
    )
    if num_microbatches < max_dp:
        return (
            f"{seen}, too few for {key} = {max_dp} replicas; use at most {num_microbatches} "
            f"replicas, or a train.microbatch of at most {train.global_batch // max_dp}"
        )
    if exact and num_microbatches % max_dp:
        return (
            f"{seen}, which {key} = {max_dp} does not divide; "
            f"use one of {_choices(divisors(num_microbatches))}"
        )
    return None


def replicated_heads(parallel: ParallelTable, model: ModelTable) -> int:
    """How many ranks of a tp group hold each kv head: above 1 where there are more ranks."""
    return max(1, parallel.tp // model.num_kv_heads)


def _tensor_problems(
    parallel: ParallelTable, model: ModelTable, train: TrainTable
) -> Iterator[str]:
    tp, seq_len = parallel.tp, train.seq_len
    workable = [
        degree
        for degree in divisors(model.num_heads)
        if _kv_heads_fit(degree, model.num_kv_heads)
        and model.ffn_width % degree == 0
        and (seq_len % degree == 0 or not parallel.sequence)
    ]
    cure = f"use one of {_choices(workable)}"
    seen = f"parallel.tp = {tp}"
    if model.num_heads % tp:
        yield f"{seen} does not divide model.num_heads = {model.num_heads}; {cure}"
    if not _kv_heads_fit(tp, model.num_kv_heads):
        yield (
            f"{seen} neither divides model.num_kv_heads = {model.num_kv_heads} nor is a multiple "
            f"of it; {cure}"
        )
    if model.ffn_width % tp:
        yield f"{seen} does not divide model.ffn_width = {model.ffn_width}; {cure}"
    if parallel.sequence and tp == 1:
        yield (
            "parallel.sequence = true shares the tokens among the ranks of a tp group, and "
            "parallel.tp = 1; set parallel.tp, or leave it false"
        )
    if parallel.sequence and seq_len % tp:
        yield (
            f"{seen} does not divide train.seq_len = {seq_len}, which parallel.sequence = true "
            f"shares out; {cure}"
        )


def _kv_heads_fit(tp: int, num_kv_heads: int) -> bool:
    """Whole kv heads on every rank, or whole ranks for every kv head."""
    return num_kv_heads % tp == 0 or tp % num_kv_heads == 0


def _choices(values: list[int]) -> str:
    return ", ".join(map(str, values))
