"""Which degrees a model and a batch allow, in plain integers. Messages name what would work."""

from collections.abc import Iterator

from remesh.orchestrator.job_tables import ModelTable, ParallelTable, TrainTable, divisors

TECHNIQUES = {
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
}


def degree_problems(parallel: ParallelTable, model: ModelTable) -> Iterator[str]:
    """What speaks against these degrees: first those that could never fit, then those not built."""
    if model.num_heads % parallel.tp:
        yield (
            f"parallel.tp = {parallel.tp} does not divide model.num_heads = {model.num_heads}; "
            f"use one of {_choices(divisors(model.num_heads))}"
        )
    if model.num_kv_heads % parallel.tp:
        yield (
            f"parallel.tp = {parallel.tp} does not divide model.num_kv_heads = "
            f"{model.num_kv_heads}; use one of {_choices(divisors(model.num_kv_heads))}"
        )
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
                f"leave it at 1 and use parallel.dp"
            )
    if parallel.zero:
        yield (
            f"parallel.zero = {parallel.zero}: sharded optimizer states are not available in this "
            f"version; leave it at 0"
        )


def batch_problem(train: TrainTable, *, max_dp: int, key: str, exact: bool) -> str | None:
    """Why the microbatches of a global batch cannot be dealt to `max_dp` replicas.

    `key` is where the job file says `max_dp`. `exact` asks for the same number on every replica: a
    degree that the user wrote down should multiply out, one that follows the cluster need not.
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


def _choices(values: list[int]) -> str:
    return ", ".join(map(str, values))
