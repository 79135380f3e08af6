"""What a job asks for that is allowed and hardly meant: one sentence each, and the run starts.

A caution is a row: the key that it is about, when it is said, and what happens. It speaks of keys
that the user has written only. Narrower bounds were the alternative: they refuse what somebody may
mean, and say nothing of two values that do not go together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from remesh.orchestrator.job.job import Job
from remesh.parallel.plan.book.verdict import shown
from remesh.parallel.plan.memory.rank_memory import STATE_BYTES
from remesh.parallel.plan.memory.rank_sizes import num_parameters
from remesh.parallel.plan.model_config import ModelConfig

_YEAR_S = 365 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """`applies` and `says` are given the job and the value of `key`."""

    key: str
    applies: Callable[[Job, Any], bool]
    says: str


def cautions(job: Job) -> tuple[str, ...]:
    """A sentence for each value that is hardly meant, by key."""
    found = [(row, _value(job, row.key)) for row in CAUTIONS if _is_written(job, row.key)]
    return tuple(
        f"{row.key} = {shown(value)}: {row.says.format(job=job)}"
        for row, value in found
        if row.applies(job, value)
    )


def _above(limit: float) -> Callable[[Job, Any], bool]:
    return lambda _, value: value > limit


def _below(limit: float) -> Callable[[Job, Any], bool]:
    return lambda _, value: value < limit


def _more_than_steps(job: Job, value: Any) -> bool:
    return isinstance(value, int) and value > job.train.steps


def _is_a_rare_angle(_: Job, theta: float) -> bool:
    return not 10 <= theta <= 1e9  # noqa: PLR2004 - published models have 10,000 to 10 million


def _decays_all(job: Job, decay: float) -> bool:
    return decay * job.train.lr >= 0.1  # noqa: PLR2004 - a tenth of each weight at each step


def _hardly_begins(job: Job, lr_steps: int) -> bool:
    return job.train.lr_curve == "cosine" and lr_steps > 100 * job.train.steps


def _keeps_all(job: Job, kept: int) -> bool:
    return kept >= 1000 and kept * job.checkpoint.every > job.train.steps  # noqa: PLR2004


def _is_too_small(job: Job, vault_bytes: int) -> bool:
    """For one snapshot of what a rank of the largest mesh holds."""
    model = ModelConfig(seq_len=job.train.seq_len, **job.model.model_dump())
    parallel = job.parallel
    parts = job.largest_mesh if job.zero.stage else parallel.tp * parallel.pp
    return 0 < vault_bytes < STATE_BYTES * num_parameters(model) // max(1, parts)


def _leaves_one_layer(job: Job, every: int) -> bool:
    return job.train.recompute != "none" and every >= job.model.num_layers


def _has_no_pipeline(job: Job, schedule: str) -> bool:
    return schedule != "1f1b" and max(job.pp_degrees) == 1


def _has_no_experts(job: Job, value: Any) -> bool:
    return job.model.num_experts == 0 and value not in (0, False)


def _moves_no_bias(job: Job, rate: float) -> bool:
    return rate > 0 and not job.model.balanced


def _is_moved_by_nothing(job: Job, balanced: bool) -> bool:  # noqa: FBT001
    return balanced and job.model.num_experts > 0 and job.train.balance_rate == 0


def _is_public(_: Job, host: str) -> bool:
    return IPv4Address(host).is_global


def _is_for_root(_: Job, port: int | None) -> bool:
    return port is not None and 0 < port < 1024  # noqa: PLR2004 - the kernel's number


OF_EXPERTS = (
    "model.top_k",
    "model.expert_width",
    "model.num_shared_experts",
    "model.num_dense_layers",
    "model.score",
    "model.balanced",
    "model.capacity_factor",
    "train.auxiliary_loss",
    "train.router_z_loss",
)
CAUTIONS = (
    *(
        Caution(
            key=key,
            applies=_has_no_experts,
            says="it is for models with experts; set model.num_experts for that",
        )
        for key in OF_EXPERTS
    ),
    Caution(
        key="model.balanced",
        applies=_is_moved_by_nothing,
        says="nothing moves the bias; set train.balance_rate, 0.001 is usual",
    ),
    Caution(
        key="train.balance_rate",
        applies=_moves_no_bias,
        says="there is no bias that it moves; set model.balanced = true for that",
    ),
    Caution(
        key="train.auxiliary_loss",
        applies=lambda _, weight: weight >= 1,
        says="it outweighs the cross-entropy; 0.01 is usual, 0.0001 beside a bias",
    ),
    Caution(
        key="train.router_z_loss",
        applies=lambda _, weight: weight >= 1,
        says="it outweighs the cross-entropy; 1e-3 is usual",
    ),
    Caution(
        key="model.rope_theta",
        applies=_is_a_rare_angle,
        says="positions cannot be told apart; 10000 is usual",
    ),
    Caution(
        key="model.norm_eps",
        applies=_above(1e-2),
        says="norms lose what they norm; 1e-5 is usual",
    ),
    Caution(
        key="train.lr",
        applies=lambda _, lr: lr >= 1,
        says="AdamW moves each weight by about so much in a step; 0.001 is usual",
    ),
    Caution(
        key="train.lr_steps",
        applies=_hardly_begins,
        says="of train.steps = {job.train.steps}: the cosine curve hardly begins",
    ),
    Caution(
        key="train.warmup_steps",
        applies=_more_than_steps,
        says="of train.steps = {job.train.steps}: the rate never arrives at train.lr",
    ),
    Caution(
        key="train.weight_decay",
        applies=_decays_all,
        says="with train.lr = {job.train.lr} each step takes a tenth of each weight, or more",
    ),
    Caution(
        key="train.beta1",
        applies=_above(0.999),
        says="a gradient counts for more than a thousand steps; 0.9 is usual",
    ),
    Caution(
        key="train.beta2",
        applies=_above(0.99999),
        says="a gradient counts for more than a hundred thousand steps; 0.95 is usual",
    ),
    Caution(
        key="train.eps",
        applies=_above(1e-3),
        says="it outweighs the gradients, so that little is learned; 1e-8 is usual",
    ),
    Caution(
        key="train.clip",
        applies=_below(1e-4),
        says="gradients shrink towards train.eps, so that little is learned; 1.0 is usual",
    ),
    Caution(
        key="train.z_loss",
        applies=lambda _, weight: weight >= 1,
        says="it outweighs the cross-entropy; 1e-4 is usual",
    ),
    Caution(
        key="train.max_skipped_steps",
        applies=_more_than_steps,
        says="of train.steps = {job.train.steps}: a run that learns nothing never fails",
    ),
    Caution(
        key="train.recompute_every",
        applies=_leaves_one_layer,
        says="of model.num_layers = {job.model.num_layers}: only the first layer is recomputed",
    ),
    Caution(
        key="parallel.schedule",
        applies=_has_no_pipeline,
        says="of parallel.pp = 1: there is no pipeline that would follow it",
    ),
    Caution(
        key="zero.bucket_bytes",
        applies=_below(4096),
        says="each block is sent by itself; 26214400 is usual",
    ),
    Caution(
        key="checkpoint.every",
        applies=_more_than_steps,
        says="of train.steps = {job.train.steps}: only the last step is saved",
    ),
    Caution(
        key="checkpoint.keep",
        applies=_keeps_all,
        says="more than the run makes: none is ever deleted",
    ),
    Caution(
        key="checkpoint.keep_best",
        applies=_keeps_all,
        says="more than the run makes: none is ever deleted",
    ),
    Caution(
        key="checkpoint.keep_every",
        applies=_more_than_steps,
        says="of train.steps = {job.train.steps}: it keeps none",
    ),
    Caution(
        key="checkpoint.snapshot_every",
        applies=_more_than_steps,
        says="of train.steps = {job.train.steps}: no snapshot is taken",
    ),
    Caution(
        key="checkpoint.vault_bytes",
        applies=_is_too_small,
        says="no snapshot of a worker has room; leave it 0 for as much as is needed",
    ),
    Caution(
        key="elastic.spares",
        applies=lambda job, spares: spares > job.largest_mesh,
        says="more workers wait than train",
    ),
    Caution(
        key="elastic.max_failures",
        applies=lambda _, most: most == 0,
        says="the first failure ends the run",
    ),
    Caution(
        key="elastic.healthy_steps",
        applies=_more_than_steps,
        says="of train.steps = {job.train.steps}: failures are never forgiven",
    ),
    Caution(
        key="elastic.wait_limit_s",
        applies=_below(5.0),
        says="no worker starts so fast: a run that lacks one fails; 600 is usual",
    ),
    Caution(
        key="elastic.wait_limit_s",
        applies=_above(_YEAR_S),
        says="a run that lacks workers waits for more than a year",
    ),
    Caution(
        key="elastic.orphan_after_s",
        applies=_below(10.0),
        says="a run ends before its driver can be back; 1800 is usual",
    ),
    Caution(
        key="elastic.orphan_after_s",
        applies=_above(_YEAR_S),
        says="a run that lost its driver goes on for more than a year",
    ),
    Caution(
        key="metrics.port",
        applies=_is_for_root,
        says="only root may listen there; without it another port is used",
    ),
    Caution(
        key="metrics.host",
        applies=_is_public,
        says="an address of the internet: whoever reaches it reads the metrics",
    ),
)


def _value(job: Job, key: str) -> Any:
    table, _, name = key.partition(".")
    return getattr(getattr(job, table), name)


def _is_written(job: Job, key: str) -> bool:
    table, _, name = key.partition(".")
    return name in getattr(job, table).model_fields_set
