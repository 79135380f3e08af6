"""What each key of the job file shapes: the loss curve, the bits of a step, or neither.

With the same curve two runs are the same run. With other bits a run is the same mathematics,
rounded in another order; without `elastic.same_bits` the number of replicas and how they share
their state do that too.

A key shapes the curve unless it stands in `OTHERWISE`. The alternative, a list of the keys that
shape it, let a run go on with other mathematics when a new key was forgotten; now that run is
refused.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from remesh.parallel.plan.book.verdict import shown

# What a run computes, by key of the job file.
Fingerprint = Mapping[str, str | int | float | bool]


class KeyClass(Enum):
    """What a key shapes. `COSINE` ones shape the curve of a run whose learning rate follows one."""

    CURVE = "curve"
    COSINE = "cosine"
    BITS = "bits"
    NEITHER = "neither"


OTHERWISE = {
    KeyClass.COSINE: frozenset({"train.min_lr", "train.lr_steps"}),
    KeyClass.BITS: frozenset(
        {
            "train.microbatch",
            "train.threads",
            "train.grad_dtype",
            "parallel.tp",
            "parallel.cp",
            "parallel.ep",
            "parallel.sequence",
            "elastic.same_bits",
        }
    ),
    # Names and places, how far and how fast the run goes on, what is kept of it. The largest number
    # of replicas shapes the curve by the number of leaves, which a fingerprint holds beside its
    # keys, and the bits by the number of their segments, which the bit key holds beside its own.
    KeyClass.NEITHER: frozenset(
        {
            "job.name",
            "data.dir",
            "data.source",
            "train.steps",
            "train.device",
            "train.max_skipped_steps",
            "train.recompute",
            "train.recompute_every",
            "parallel.dp",
            "parallel.pp",
            "parallel.schedule",
            "parallel.virtual_stages",
            "parallel.layers",
            "parallel.allow_cross_node_tp",
            "zero.stage",
            "zero.group",
            "zero.bucket_bytes",
            "zero.keep_gathered",
            "checkpoint.dir",
            "checkpoint.url",
            "checkpoint.every",
            "checkpoint.keep",
            "checkpoint.keep_every",
            "checkpoint.keep_best",
            "checkpoint.snapshot_every",
            "checkpoint.vault_bytes",
            "elastic.min_nodes",
            "elastic.max_nodes",
            "elastic.max_workers",
            "elastic.min_workers",
            "elastic.pp",
            "elastic.tp",
            "elastic.cp",
            "elastic.ep",
            "elastic.spares",
            "elastic.max_failures",
            "elastic.healthy_steps",
            "elastic.patience_s",
            "elastic.wait_limit_s",
            "elastic.orphan_after_s",
            "metrics.port",
            "metrics.host",
            "metrics.names",
        }
    ),
}

# What may change on the way and still be the same run: it takes effect from a step on. All else
# that shapes the curve shapes parameters, or which samples a step has and how they are added up.
AMENDABLE = frozenset(
    {
        "data.skip",
        "train.lr",
        "train.min_lr",
        "train.lr_curve",
        "train.lr_steps",
        "train.warmup_steps",
        "train.weight_decay",
        "train.beta1",
        "train.beta2",
        "train.eps",
        "train.clip",
        "train.z_loss",
        "train.auxiliary_loss",
        "train.router_z_loss",
        "train.balance_rate",
    }
)
ORIGIN = "origin"  # of a fingerprint: the checkpoint that the run branched off

_REASONS = {
    "model.": "it shapes the parameters",
    "job.seed": "it shapes the order of the samples",
    "data.digest": "it shapes which samples a step has",
    "train.global_batch": "it shapes which samples a step has",
    "train.seq_len": "it shapes which samples a step has",
    "train.dtype": "it shapes the arithmetic of every step",
    "leaves": "it shapes the order in which gradients are added up",
}


def class_of(key: str) -> KeyClass:
    return next((found for found, keys in OTHERWISE.items() if key in keys), KeyClass.CURVE)


def curve_of(job: BaseModel, *, cosine: bool) -> dict[str, Any]:
    """What shapes the loss curve, by key, but for what stands at a default of its own.

    A run then goes on under a version that has more keys. A default may never be changed.
    """
    wanted = {KeyClass.CURVE, KeyClass.COSINE} if cosine else {KeyClass.CURVE}
    return {
        key: value
        for key, value, field in _values(job)
        if class_of(key) in wanted and value != field.default
    }


def bits_of(job: BaseModel) -> dict[str, Any]:
    """What shapes the bits of a step and not its mathematics, by key."""
    return {key: value for key, value, _ in _values(job) if class_of(key) is KeyClass.BITS}


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The keys in which two jobs differ, with both values; None if they are the same."""
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if not keys:
        return None
    return ", ".join(f"{key} was {_shown(old, key)} and is {_shown(new, key)}" for key in keys)


def refusal(held: Fingerprint, wanted: Fingerprint) -> str | None:
    """In what a job is another run than that of this fingerprint, and why; None if it is the same.

    What may change on the way does not count, nor where the run comes from.
    """
    fixed = [key for key in {**held, **wanted} if key not in AMENDABLE and key != ORIGIN]
    found = [
        f"{key} was {_shown(held, key)} and is {_shown(wanted, key)}{_because(key)}"
        for key in fixed
        if held.get(key) != wanted.get(key)
    ]
    return ", ".join(found) or None


def reason_of(key: str) -> str:
    """Why a run with another value of this key is another run, empty where that needs no reason."""
    return next((why for start, why in _REASONS.items() if key.startswith(start)), "")


def bits_change(old: Fingerprint | None, new: Fingerprint) -> str | None:
    """What to say of a run that goes on with these bits, None if they are those it had."""
    found = difference(old, new) if old is not None else None
    return found and f"the bits change from here on: {found}"


def _shown(values: Mapping[str, Any], key: str) -> str:
    return shown(values[key]) if key in values else "unset"


def _because(key: str) -> str:
    reason = reason_of(key)
    return f" ({reason})" if reason else ""


def _values(job: BaseModel) -> Iterator[tuple[str, Any, FieldInfo]]:
    """Each key of the job file with its value."""
    for table in type(job).model_fields:
        values = getattr(job, table)
        for name, field in type(values).model_fields.items():
            yield f"{table}.{name}", getattr(values, name), field
