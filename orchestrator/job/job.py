"""The job file: what the user asks for, checked once and then trusted.

A job is a frozen value. It is read from TOML with `load_job`; relative folders in it count from the
working directory, not from the file, so that a job file can be shared.
"""

import codecs
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from remesh.data.cursor import MAX_POSITION
from remesh.data.skips import parse_skips
from remesh.orchestrator.job.overrides import put
from remesh.orchestrator.job.problems import first_problem
from remesh.orchestrator.job.tables import (
    TABLE,
    CheckpointTable,
    DataTable,
    ElasticTable,
    JobTable,
    MetricsTable,
    ModelTable,
    ParallelTable,
    TrainTable,
    ZeroTable,
)
from remesh.orchestrator.plan.legality import batch_problem, degree_problems, zero_problem
from remesh.orchestrator.plan.shape import Shape
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.plan.leaves import choose_num_leaves

MAX_FILE_BYTES = 1 << 20

# What the loss curve depends on, besides the data and the leaves. Neither `train.steps` nor what
# only says where and how fast the run goes on.
CURVE_KEYS = (
    "job.seed",
    "model.num_layers",
    "model.width",
    "model.num_heads",
    "model.num_kv_heads",
    "model.ffn_width",
    "model.vocab_size",
    "model.rope_theta",
    "model.norm_eps",
    "train.global_batch",
    "train.microbatch",
    "train.seq_len",
    "train.lr",
    "train.lr_curve",
    "train.warmup_steps",
    "train.weight_decay",
    "train.beta1",
    "train.beta2",
    "train.eps",
    "train.clip",
)
COSINE_KEYS = ("train.min_lr", "train.lr_steps")
# Keys that came later stand there only where they are not at their defaults, so that a run from
# before them goes on.
LATER_KEYS = (
    "model.norm",
    "model.positions",
    "model.activation",
    "model.bias",
    "model.qk_norm",
    "model.tied",
    "train.dtype",
    "train.z_loss",
)

Fingerprint = Mapping[str, str | int | float]


class Job(BaseModel):
    """A whole job file. Its cross-checks hold: every property below is defined."""

    model_config = TABLE
    job: JobTable
    model: ModelTable
    data: DataTable
    train: TrainTable
    parallel: ParallelTable = Field(default_factory=ParallelTable)
    zero: ZeroTable = Field(default_factory=ZeroTable)
    checkpoint: CheckpointTable = Field(default_factory=CheckpointTable)
    elastic: ElasticTable = Field(default_factory=ElasticTable)
    metrics: MetricsTable = Field(default_factory=MetricsTable)

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def run_dir(self) -> Path:
        """The folder that is the run."""
        return Path(self.checkpoint.dir or f"runs/{self.name}")

    @property
    def shape(self) -> Shape:
        """What all meshes of the run have in common."""
        dp, tp, zero = self.parallel.dp, self.parallel.tp, self.zero
        max_dp = self.elastic.max_workers // tp if dp == "auto" else dp
        max_dp -= max_dp % (zero.group or 1)
        return Shape(max_dp=max_dp, tp=tp, zero_stage=zero.stage, zero_group=zero.group)

    @property
    def max_dp(self) -> int:
        """The largest number of replicas that the run may reach."""
        return self.shape.max_dp

    @property
    def num_microbatches(self) -> int:
        return self.train.global_batch // self.train.microbatch

    @property
    def num_leaves(self) -> int:
        if not self.elastic.same_bits:
            return self.num_microbatches
        return choose_num_leaves(self.num_microbatches, self.max_dp)

    @property
    def bucket_elements(self) -> int:
        """Of a bucket of gradients."""
        return self.zero.bucket_bytes // (2 if self.train.grad_dtype == "bf16" else 4)

    @property
    def bit_key(self) -> str:
        """What may change the bits of a step, but not its mathematics.

        With `same_bits=false` in it, the number of replicas and how they share their state do too.
        """
        p, train = self.parallel, self.train
        key = f"tp={p.tp} cp={p.cp} ep={p.ep} microbatch={train.microbatch} threads={train.threads}"
        if p.sequence:
            key += " sequence=true"
        if train.grad_dtype != "fp32":
            key += f" grad_dtype={train.grad_dtype}"
        return key if self.elastic.same_bits else f"{key} same_bits=false"

    def fingerprint(self, data_digest: str) -> dict[str, str | int | float]:
        """Everything that shapes the loss curve, by key: with the same, two runs are the same."""
        cosine = self.train.lr_curve == "cosine"
        keys = CURVE_KEYS + COSINE_KEYS if cosine else CURVE_KEYS
        values: dict[str, str | int | float] = {key: _value(self, key) for key in keys}
        values |= {key: _value(self, key) for key in LATER_KEYS if not _is_default(self, key)}
        values["data.digest"] = data_digest
        ranges = parse_skips(self.data.skip).ranges
        values["data.skip"] = ", ".join(f"{first}..{last}" for first, last in ranges)
        values["leaves"] = self.num_leaves
        return values

    def continuing(self, fingerprint: Fingerprint) -> "Job":
        """The job as the continuation of a run: a cosine curve ends where the run's always ended.

        Raises: UserError if it asks for steps that would train with a learning rate of 0.
        """
        lr_steps = fingerprint.get("train.lr_steps")
        if self.train.lr_curve != "cosine" or not isinstance(lr_steps, int):
            return self
        if "lr_steps" in self.train.model_fields_set:
            return self
        if self.train.steps > lr_steps and self.train.min_lr == 0:
            raise UserError(
                f"train.steps = {self.train.steps}: this run's cosine curve ends at step "
                f"{lr_steps} with a learning rate of 0, later steps would learn nothing; "
                f"start a new run with --fresh, or with another checkpoint.dir"
            )
        train = self.train.model_copy(update={"lr_steps": lr_steps})
        return self.model_copy(update={"train": train})

    @model_validator(mode="after")
    def _tables_agree(self) -> Self:
        problem = next(iter(_cross_problems(self)), None)
        if problem:
            raise ValueError(problem)
        return self


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """The job in a TOML file, with `table.key=value` overrides on top.

    Raises: UserError with one line that names the file or `--set`, the key, what was seen and what
    was expected.
    """
    return parse_job(read_job_file(path), name=str(path), overrides=overrides)


def parse_job(text: str, *, name: str, overrides: Sequence[str] = (), home: str = "") -> Job:
    """The job in a text; `name` stands in errors, and `~` in it is `home`.

    Raises as `load_job`.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name}: not TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{name}: not a job file: its values are nested too deeply") from None
    overridden = [put(tables, assignment) for assignment in overrides]
    try:
        return Job.model_validate(tables, context={"home": home})
    except ValidationError as error:
        problem = first_problem(error, Job, overrides)
        by_override = any(problem.startswith((key, _unknown(key))) for key in overridden)
        raise UserError(f"{'--set' if by_override else name}: {problem}") from None


def fingerprint_difference(old: Fingerprint, new: Fingerprint) -> str | None:
    """The fields in which two fingerprints differ, with both values; None if they are the same."""
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if not keys:
        return None
    return ", ".join(
        f"{key} was {old.get(key, 'unset')} and is {new.get(key, 'unset')}" for key in keys
    )


def read_job_file(path: Path) -> str:
    """The text of a job file. Raises: UserError if it cannot be one."""
    try:
        with path.open("rb") as file:  # a pipe as well, but nothing that has no end
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; name a job file, such as examples/tiny.toml"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise UserError(f"{path}: too large; a job file has at most {MAX_FILE_BYTES} bytes")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{path}: not TOML: it is UTF-16; save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not TOML: not UTF-8 text at byte {error.start}") from None


def _unknown(key: str) -> str:
    return f"{key.partition('.')[0]}: unknown table"


def _value(job: Job, key: str) -> Any:
    table, field = key.split(".")
    return getattr(getattr(job, table), field)


def _is_default(job: Job, key: str) -> bool:
    table, field = key.split(".")
    fields: Mapping[str, FieldInfo] = type(getattr(job, table)).model_fields
    return bool(_value(job, key) == fields[field].default)


def _cross_problems(job: Job) -> Iterator[str]:
    """What is wrong between tables, the first thing first."""
    yield from degree_problems(job.parallel, job.model, job.train)
    yield from _size_problems(job)
    key = "elastic.max_workers" if job.parallel.dp == "auto" else "parallel.dp"
    batch_key = key if key == "parallel.dp" or job.shape.tp == 1 else f"{key} / parallel.tp"
    exact = key == "parallel.dp"
    batch = batch_problem(job.train, max_dp=job.max_dp, key=batch_key, exact=exact)
    if batch:
        yield batch
    yield from _bound_problems(job, key)
    yield from _reach_problems(job)


def _size_problems(job: Job) -> Iterator[str]:
    """Whether there can be a mesh, with so many workers at most."""
    dp, tp, group, elastic = job.parallel.dp, job.parallel.tp, job.zero.group, job.elastic
    if problem := zero_problem(job.parallel, job.zero):
        yield problem
    if dp == "auto" and not job.max_dp:
        groups = f" in groups of zero.group = {group} replicas" if group else ""
        yield (
            f"parallel.tp = {tp}{groups} needs {job.shape.smallest} workers and "
            f"elastic.max_workers = {elastic.max_workers}; lower the one or raise the other"
        )
    if dp != "auto" and "max_workers" in elastic.model_fields_set and dp * tp > elastic.max_workers:
        product = f"parallel.dp = {dp}" if tp == 1 else f"parallel.dp = {dp} with tp = {tp}"
        yield (
            f"{product} needs {dp * tp} workers and elastic.max_workers = "
            f"{elastic.max_workers}; lower the one or raise the other"
        )


def _bound_problems(job: Job, key: str) -> Iterator[str]:
    """Whether the bounds of workers and nodes leave room for the largest mesh."""
    elastic, largest = job.elastic, job.shape.largest
    low, high = elastic.min_nodes, elastic.max_nodes
    written = elastic.max_workers if job.parallel.dp == "auto" else job.parallel.dp
    bound = f"{key} = {written}"
    if written != largest:
        bound += f", a mesh of {largest} workers in tp groups of {job.shape.tp}"
    if elastic.min_workers > largest:
        yield f"elastic.min_workers = {elastic.min_workers} is above {bound}"
    if high is not None and low > high:
        yield f"elastic.min_nodes = {low} is above elastic.max_nodes = {high}"
    if low > largest:
        yield (
            f"elastic.min_nodes = {low} is above {bound}: a node without a worker is of "
            f"no use; lower the one or raise the other"
        )


def _reach_problems(job: Job) -> Iterator[str]:
    """Whether the samples of the last step still have a position."""
    steps, batch = job.train.steps, job.train.global_batch
    last = parse_skips(job.data.skip).batch_of(steps)
    if last * batch > MAX_POSITION:
        yield (
            f"data.skip has step {steps} train batch {last}, which with train.global_batch = "
            f"{batch} ends beyond position {MAX_POSITION}; skip fewer batches"
        )
