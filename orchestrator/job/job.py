"""The job file: what the user asks for, checked once and then trusted.

A job is a frozen value. It is read from TOML with `load_job`; relative folders in it count from the
working directory, not from the file, so that a job file can be shared.
"""

import codecs
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import lcm, prod
from os import PathLike
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, model_validator

from remesh.data.cursor import MAX_POSITION
from remesh.data.skips import parse_skips
from remesh.orchestrator.job.amendments import Amendments, Setting, values_at
from remesh.orchestrator.job.checks import EVERY_RULE, POSSIBLE, rule_problems
from remesh.orchestrator.job.curve import (
    AMENDABLE,
    OTHERWISE,
    Fingerprint,
    KeyClass,
    bits_of,
    curve_of,
)
from remesh.orchestrator.job.foreign_words import other_format
from remesh.orchestrator.job.overrides import put
from remesh.orchestrator.job.problems import first_problem
from remesh.orchestrator.job.tables.cut_tables import ParallelTable, ZeroTable
from remesh.orchestrator.job.tables.kinds import TABLE
from remesh.orchestrator.job.tables.model_table import ModelTable
from remesh.orchestrator.job.tables.run_tables import (
    CheckpointTable,
    ElasticTable,
    JobTable,
    MetricsTable,
)
from remesh.orchestrator.job.tables.train_tables import DataTable, TrainTable
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count, given_path
from remesh.parallel.plan.book.rules import Rule
from remesh.parallel.plan.book.verdict import shown
from remesh.parallel.plan.leaves import choose_num_leaves

MAX_FILE_BYTES = 1 << 20
BITS = ("tp", "cp", "ep")  # degrees of which a run may have others, for other bits
ELASTIC = frozenset({"pp", *BITS})
MOST_KINDS = 64  # of meshes, each of other degrees

BatchCut = tuple[int, int]  # leaves, and segments of the tree that adds them up


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
    _batch: BatchCut | None = PrivateAttr(default=None)

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def run_dir(self) -> Path:
        """The folder that is the run."""
        return Path(self.checkpoint.dir or f"runs/{self.name}")

    @property
    def timers(self) -> Timers:
        """Every deadline of the run."""
        return Timers(patience_s=self.elastic.patience_s)

    @property
    def pp_degrees(self) -> tuple[int, ...]:
        """The numbers of stages that pipelines may have, the best one first."""
        return tuple(dict.fromkeys((self.parallel.pp, *self.elastic.pp)))

    @property
    def most_workers(self) -> int:
        """Workers that no mesh exceeds."""
        if self.parallel.dp == "auto" or "max_workers" in self.elastic.model_fields_set:
            return self.elastic.max_workers
        return self.parallel.dp * self.parallel.pp * self.stage_workers

    @property
    def stage_workers(self) -> int:
        """Workers of one stage of one replica."""
        return self.parallel.tp * self.parallel.cp

    @property
    def replicas_together(self) -> int:
        """Replicas that have all experts between them."""
        return max(1, self.parallel.ep // self.parallel.cp)

    def replicas(self, stages: int) -> int:
        """The most that the run may have of pipelines of so many stages: whole ZeRO groups, which
        have all experts.
        """
        dp, most = self.parallel.dp, self.most_workers // (stages * self.stage_workers)
        leaves = self._batch and self._batch[0]
        most = min([most, *(bound for bound in (dp, leaves) if isinstance(bound, int))])
        return most - most % lcm(self.zero.group or 1, self.replicas_together)

    @property
    def max_dp(self) -> int:
        """The largest number of replicas that the run may reach."""
        return max(job.replicas(pp) for job in self.falls() for pp in job.pp_degrees)

    @property
    def largest_mesh(self) -> int:
        """Workers of the largest mesh, 0 if there can be none."""
        return max(
            job.stage_workers * pp * job.replicas(pp)
            for job in self.falls()
            for pp in job.pp_degrees
        )

    def falls(self) -> Iterator["Job"]:
        """The job with each of the degrees that its run may have for other bits, as far as they go
        together: its own first.
        """
        yield self
        own = [getattr(self.parallel, axis) for axis in BITS]
        more = [getattr(self.elastic, axis) for axis in BITS]
        either = [dict.fromkeys((one, *others)) for one, others in zip(own, more, strict=True)]
        for degrees in product(*either):
            job = self.shared_by(dict(zip(BITS, degrees, strict=True)), self._batch)
            fits = self._batch is None or not self._batch[0] % job.replicas_together
            if [*degrees] != own and fits and next(rule_problems(job, POSSIBLE), None) is None:
                yield job

    @property
    def num_microbatches(self) -> int:
        return self.train.global_batch // self.train.microbatch

    @property
    def num_leaves(self) -> int:
        if self._batch is not None:
            return self._batch[0]
        if not self.elastic.same_bits:
            return self.num_microbatches
        together = lcm(*(job.replicas_together for job in self.falls()))
        return choose_num_leaves(self.num_microbatches, max(self.max_dp, together), together)

    @property
    def num_segments(self) -> int:
        """Of the tree that adds up the leaves: one for each replica there may be."""
        if self._batch is not None:
            return self._batch[1]
        return min(self.max_dp, self.num_leaves) if self.elastic.same_bits else 1

    @property
    def batch_cut(self) -> BatchCut:
        """Into how many leaves and segments its batch is cut."""
        return self.num_leaves, self.num_segments

    @property
    def bucket_elements(self) -> int:
        """Of a bucket of gradients."""
        return self.zero.bucket_bytes // (2 if self.train.grad_dtype == "bf16" else 4)

    @property
    def bits(self) -> Fingerprint:
        """What may change the bits of a step, but not its mathematics, by key."""
        return {**bits_of(self), "segments": self.num_segments}

    @property
    def bit_key(self) -> str:
        """The same as one text."""
        return bit_key_of(self.bits)

    def fingerprint(self, data_digest: str) -> Fingerprint:
        """Everything that shapes the loss curve, by key: with the same, two runs are the same."""
        return {
            **curve_of(self, cosine=self.train.lr_curve == "cosine"),
            "data.digest": data_digest,
            "data.skip": self._skip_text,
            "leaves": self.num_leaves,
        }

    @property
    def amendable(self) -> dict[str, Setting]:
        """What of the job may change on the way, by key, as far as it shapes the curve."""
        cosine = self.train.lr_curve == "cosine"
        keys = AMENDABLE if cosine else AMENDABLE - OTHERWISE[KeyClass.COSINE]
        values = {f"train.{name}": value for name, value in self.train.model_dump().items()}
        values["data.skip"] = self._skip_text
        return {key: value for key, value in values.items() if key in keys}

    def at(self, step: int, amendments: Amendments) -> "Job":
        """The job with the values that these amendments put in force at a step."""
        return self.having(values_at(amendments, step))

    def having(self, values: Mapping[str, Setting]) -> "Job":
        """The job with other values of keys that may change on the way."""
        named = {key.removeprefix("train."): value for key, value in values.items()}
        skip = named.pop("data.skip", None)
        data = {} if skip is None else {"skip": tuple(str(skip).split(",")) if skip else ()}
        return self.model_copy(
            update={
                "train": self.train.model_copy(update=named),
                "data": self.data.model_copy(update=data),
            }
        )

    def shared_by(self, degrees: Mapping[str, int], batch: BatchCut | None) -> "Job":
        """The job with other degrees, such as `tp`, beside which it has no others to fall to; its
        batch is cut like this, whatever would follow from them.
        """
        elastic = dict.fromkeys(degrees.keys() & ELASTIC, ())
        parallel: dict[str, Any] = dict(degrees)
        if degrees.get("pp", self.parallel.pp) != self.parallel.pp:
            parallel["layers"] = ()
        job = self.model_copy(
            update={
                "parallel": self.parallel.model_copy(update=parallel),
                "elastic": self.elastic.model_copy(update=elastic),
            }
        )
        job._batch = batch  # noqa: SLF001 - of its own class
        return job

    @property
    def _skip_text(self) -> str:
        ranges = parse_skips(self.data.skip).ranges
        return ", ".join(f"{first}..{last}" for first, last in ranges)

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
                f"{lr_steps} with a learning rate of 0, later steps would learn nothing; stretch "
                f"it from there on with --set train.lr_steps={self.train.steps}, or give it a "
                f"train.min_lr"
            )
        train = self.train.model_copy(update={"lr_steps": lr_steps})
        return self.model_copy(update={"train": train})

    @model_validator(mode="after")
    def _tables_agree(self) -> Self:
        if problem := next(self.problems(), None):
            raise ValueError(problem)
        return self

    def problems(self, rules: Sequence[Rule] = EVERY_RULE) -> Iterator[str]:
        """What is wrong between tables, the first thing first."""
        yield from rule_problems(self, rules)
        yield from _fall_problems(self)
        yield from _bound_problems(self)
        yield from _reach_problems(self)


def bit_key_of(bits: Fingerprint) -> str:
    """These keys and values as one text."""
    return " ".join(f"{key}={shown(value)}" for key, value in bits.items())


def load_job(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Job:
    """The job in a TOML file, with `table.key=value` overrides on top.

    Raises: UserError with one line that names the file or `--set`, the key, what was seen and what
    was expected.
    """
    file = given_path(path)
    return parse_job(read_job_file(file), name=str(file), overrides=overrides)


def parse_job(text: str, *, name: str, overrides: Sequence[str] = (), home: str = "") -> Job:
    """The job in a text; `name` stands in errors, and `~` in it is `home`.

    Raises as `load_job`.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name}: {_no_toml(text, error)}") from None
    except RecursionError:
        raise UserError(f"{name}: not a job file: its values are nested too deeply") from None
    overridden = [put(tables, assignment) for assignment in overrides]
    try:
        return Job.model_validate(tables, context={"home": home})
    except ValidationError as error:
        problem = first_problem(error, Job, overrides)
        by_override = any(problem.startswith((key, _unknown(key))) for key in overridden)
        raise UserError(f"{'--set' if by_override else name}: {problem}") from None


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


def _no_toml(text: str, error: tomllib.TOMLDecodeError) -> str:
    if other := other_format(text):
        return (
            f"a job file is TOML, and this is {other}; write tables and keys as in "
            f"examples/tiny.toml: [train], and below it steps = 80"
        )
    return f"not TOML: {error}"


def _unknown(key: str) -> str:
    return f"{key.partition('.')[0]}: unknown table"


def _fall_problems(job: Job) -> Iterator[str]:
    """Whether the rule book allows each degree that the run may fall to beside the job's own."""
    others = {axis: getattr(job.elastic, axis) for axis in BITS}
    kinds = prod(1 + len(degrees) for degrees in (job.elastic.pp, *others.values()))
    if kinds > MOST_KINDS:
        yield (
            f"elastic.pp, tp, cp and ep make up to {kinds} kinds of meshes; name fewer of them, "
            f"for at most {MOST_KINDS}"
        )
        return
    for axis, degrees in others.items():
        for degree in degrees:
            fallen = job.shared_by({axis: degree}, None)
            for problem in rule_problems(fallen, POSSIBLE):
                yield f"elastic.{axis} = {shown(degrees)}: {problem}"


def _bound_problems(job: Job) -> Iterator[str]:
    """Whether the bounds of workers and nodes leave room for the largest mesh."""
    elastic, largest = job.elastic, job.largest_mesh
    low, high = elastic.min_nodes, elastic.max_nodes
    key = "elastic.max_workers" if job.parallel.dp == "auto" else "parallel.dp"
    written = elastic.max_workers if job.parallel.dp == "auto" else job.parallel.dp
    bound = f"{key} = {written}"
    if written != largest:
        bound += f", a mesh of {count(largest, 'worker')} in whole replicas"
    if elastic.min_workers > largest:
        yield (
            f"elastic.min_workers = {elastic.min_workers} is above {bound}; set "
            f"elastic.min_workers = {largest}, or less"
        )
    if high is not None and low > high:
        yield (
            f"elastic.min_nodes = {low} is above elastic.max_nodes = {high}; set "
            f"elastic.min_nodes = {high}, or less"
        )
    if low > largest:
        yield (
            f"elastic.min_nodes = {low} is above {bound}: a node without a worker is of "
            f"no use; set elastic.min_nodes = {largest}, or less"
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
