"""The tables of the job file. Every value is checked here, once; the rest of Remesh trusts it.

The types are strict: a job file that says `steps = "80"` or `steps = true` is a mistake, and
turning it into a number would hide it.
"""

from ipaddress import IPv4Address
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from remesh.data.data_error import DataError
from remesh.data.skips import parse_skips
from remesh.orchestrator.user_text import (
    count,
    from_home,
    path_problem,
    place_problem,
    read_only_problem,
    root_problem,
)
from remesh.parallel.plan.buckets import BUCKET_BYTES

TABLE = ConfigDict(
    extra="forbid",
    frozen=True,
    strict=True,
    allow_inf_nan=False,
    protected_namespaces=(),
    use_attribute_docstrings=True,
)

Count = Annotated[int, Field(ge=1, le=2**40)]
CountOrZero = Annotated[int, Field(ge=0, le=2**40)]
MAX_DIMENSION, MAX_DEGREE = 2**20, 2**16
Dimension = Annotated[int, Field(ge=1, le=MAX_DIMENSION)]
Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE)]
DegreeOrZero = Annotated[int, Field(ge=0, le=MAX_DEGREE)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
PathText = Annotated[str, Field(min_length=1, max_length=4096)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Degrees = Annotated[tuple[Degree, ...], Field(strict=False, max_length=100)]
DimensionOrZero = Annotated[int, Field(ge=0, le=MAX_DIMENSION)]
FloatKind = Literal["fp32", "bf16"]


def _path(text: str, info: ValidationInfo) -> str:
    return _from_home(text, path_problem(text) or root_problem(text), info)


def _place(text: str, info: ValidationInfo) -> str:
    problem = place_problem(text) or root_problem(text) or read_only_problem(text)
    return _from_home(text, problem, info)


def _from_home(text: str, problem: str | None, info: ValidationInfo) -> str:
    """`~` is the home of who has written the job, where the context names it."""
    if problem:
        raise ValueError(problem)
    return from_home(text, (info.context or {}).get("home", ""))


Folder = Annotated[PathText, AfterValidator(_path)]
FolderOrUrl = Annotated[PathText, AfterValidator(_place)]  # a folder or a URL


class JobTable(BaseModel):
    """`name` stands in paths and metrics; `seed` keys the parameters and the order of the data."""

    model_config = TABLE
    name: Name
    """Stands in paths, metrics and events."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Keys the initial parameters and the order of the data."""


class ModelTable(BaseModel):
    """`bias` gives one to every linear map but the head, `qk_norm` norms the heads of q and k.

    A `tied` model reads its words with the weights of its embedding.

    With `num_experts` the layers after the first `num_dense_layers` have experts, `top_k` of which
    each token goes to. `score` and `normed_scores` say what they count; a `balanced` router adds a
    bias to the scores by which it chooses, which follows how often each expert is chosen. With a
    `capacity_factor` an expert that has so many times its share of a sequence takes no more.
    """

    model_config = TABLE
    num_layers: Dimension
    """Blocks of attention and feed-forward."""
    width: Dimension
    """Numbers that a token is between the blocks."""
    num_heads: Dimension
    """Heads of attention; they divide the width."""
    num_kv_heads: Dimension = Field(default_factory=lambda data: data["num_heads"])
    """Heads of keys and values, which divide the heads; as many as those by default."""
    ffn_width: Dimension
    """Inner width of the feed-forward part."""
    vocab_size: Annotated[int, Field(ge=2, le=2**16)] = 256
    """Tokens that there are; the 256 bytes by default."""
    rope_theta: Positive = 10000.0
    """Base of the rotary positions."""
    norm_eps: Positive = 1e-5
    """Added under the root of a norm."""
    norm: Literal["rms", "layer"] = "rms"
    """RMS norm, or layer norm."""
    positions: Literal["rope", "learned"] = "rope"
    """Rotary positions, or learned ones."""
    activation: Literal["swiglu", "gelu"] = "swiglu"
    """Gated SiLU, or GELU."""
    bias: bool = False
    """A bias in every linear map but the head."""
    qk_norm: bool = False
    """An RMS norm of each head of queries and keys."""
    tied: bool = False
    """The head uses the weights of the embedding."""
    num_experts: DimensionOrZero = 0
    """Feed-forward nets of a layer, to some of which each token goes; 0 for one that all go to."""
    top_k: Dimension = 2
    """Experts that a token goes to."""
    expert_width: DimensionOrZero = 0
    """Inner width of an expert; `ffn_width` if it is 0."""
    num_shared_experts: DimensionOrZero = 0
    """Experts that all tokens go to, beside those that are chosen."""
    num_dense_layers: DimensionOrZero = 0
    """First layers without experts."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """How a router scores experts: against each other, or each by itself."""
    normed_scores: bool = True
    """The scores of the experts of a token are made to add up to 1."""
    balanced: bool = False
    """A bias of each expert, by which it is chosen, follows how often it is."""
    capacity_factor: NotNegative = 0.0
    """Times its even share that an expert takes of a sequence; all that choose it if it is 0."""


class DataTable(BaseModel):
    """`source` is built into `dir` when that holds no dataset yet; `skip` names global batches."""

    model_config = TABLE
    dir: Folder
    """Folder of the dataset."""
    source: Folder | None = None
    """Folder, file or "python-stdlib" that is built into `dir` when that holds no dataset."""
    skip: Annotated[tuple[str, ...], Field(strict=False, max_length=10_000)] = ()
    """Global batches to leave out, such as ["30..35"]."""

    @model_validator(mode="after")
    def _skips_are_ranges(self) -> Self:
        try:
            parse_skips(self.skip)
        except DataError as error:
            raise ValueError(str(error)) from None
        return self


class TrainTable(BaseModel):
    """`global_batch` and `microbatch` count sequences, `steps` optimizer updates.

    `lr_steps` is where a cosine curve reaches `min_lr`. Left out it is the `steps` of the run's
    first start, and stays so when the run is continued with more steps: a curve that stretched
    would change steps that are trained already.

    `dtype` is that of the arithmetic and of the weights it works with, `grad_dtype` the one in
    which gradients are added up and sent; master weights and optimizer states are fp32 always.
    `recompute` trades time for memory in every `recompute_every`-th layer.

    `device` is where ranks compute: with "cpu" also on nodes that have GPUs, which "auto" refuses
    as long as there are no GPU ranks.

    A step whose loss or gradient is not finite updates nothing; `max_skipped_steps` of them in a
    row end the run.
    """

    model_config = TABLE
    steps: Count
    """Optimizer updates in all."""
    global_batch: Dimension
    """Sequences of a step, however many workers there are."""
    microbatch: Dimension
    """Sequences that a worker computes at a time."""
    seq_len: Dimension
    """Tokens of a sequence."""
    lr: Positive = 3e-3
    """Learning rate, at the peak of its curve."""
    min_lr: NotNegative = 0.0
    """Where a cosine curve ends."""
    lr_curve: Literal["constant", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up."""
    lr_steps: Count = Field(default_factory=lambda data: data["steps"])
    """Step at which a cosine curve ends; the `steps` of the run's first start by default."""
    warmup_steps: CountOrZero = 0
    """Steps in which the learning rate rises to its peak."""
    weight_decay: NotNegative = 0.1
    """Decay of matrices in AdamW."""
    beta1: Decay = 0.9
    """Decay of AdamW's first moment."""
    beta2: Decay = 0.95
    """Decay of AdamW's second moment."""
    eps: Positive = 1e-8
    """Added to the root of AdamW's second moment."""
    clip: Positive = 1.0
    """Largest norm of the gradient."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where ranks compute; "cpu" leaves GPUs idle, "cuda" is not built yet."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads of each worker."""
    dtype: FloatKind = "fp32"
    """Arithmetic and working weights; master weights are fp32 always."""
    grad_dtype: FloatKind = "fp32"
    """In which gradients are added up and sent."""
    z_loss: NotNegative = 0.0
    """Weight of the squared logarithm of the softmax's sum."""
    auxiliary_loss: NotNegative = 0.0
    """Weight of the loss that has routers use all experts alike."""
    router_z_loss: NotNegative = 0.0
    """Weight of the squared logarithm of the sum of a router's exponentials."""
    balance_rate: NotNegative = 0.0
    """By how much the bias of an expert follows its load, a step, where `model.balanced`."""
    max_skipped_steps: Count = 10
    """Updates in a row that may be skipped, for a loss or gradient that is not finite, before the
    run has failed.
    """
    recompute: Literal["none", "attention", "full"] = "none"
    """What is computed again in backward, to save memory."""
    recompute_every: Dimension = 1
    """In every so many-th layer only."""

    @field_validator("device")
    @classmethod
    def _device_is_built(cls, device: str) -> str:
        if device == "cuda":
            msg = 'GPU ranks are not built yet; leave it out, or use "cpu"'
            raise ValueError(msg)
        return device

    @model_validator(mode="after")
    def _curve_is_a_curve(self) -> Self:
        if self.min_lr > self.lr:
            msg = (
                f"train.min_lr = {self.min_lr} is above train.lr = {self.lr}; set train.min_lr = "
                f"{self.lr}, or less"
            )
            raise ValueError(msg)
        if self.lr_curve == "cosine" and self.min_lr == 0 and self.steps > self.lr_steps:
            msg = (
                f"train.steps = {self.steps} goes beyond train.lr_steps = {self.lr_steps}, where a "
                f"cosine curve reaches train.min_lr = 0 and nothing is learned; set "
                f"train.lr_steps = {self.steps}"
            )
            raise ValueError(msg)
        if self.lr_curve == "cosine" and self.warmup_steps >= self.lr_steps:
            msg = (
                f"train.warmup_steps = {self.warmup_steps} leaves nothing of a cosine curve of "
                f"{count(self.lr_steps, 'step')}; set train.warmup_steps = "
                f"{self.lr_steps - 1}, or less"
            )
            raise ValueError(msg)
        return self


class ParallelTable(BaseModel):
    """Degrees of the axes. `dp = "auto"` follows the workers that there are.

    The ranks of a tp group are on one node, unless `allow_cross_node_tp` lets them straddle nodes.
    With `sequence` they also share the tokens of what lies between the split layers.

    A pipeline of `pp` stages computes by a `schedule`; where a mesh has too few microbatches for
    it, by "1f1b", to the same bits. With "interleaved" each worker has `virtual_stages` of them,
    with "dualpipe-v" two. `layers` are those of each virtual stage, from front to back.
    """

    model_config = TABLE
    dp: Degree | Literal["auto"] = "auto"
    """Replicas; "auto" follows the workers that there are."""
    tp: Degree = 1
    """Workers that share each layer."""
    pp: Degree = 1
    """Stages of a pipeline: workers that have a part of the layers each."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe-v"] = "1f1b"
    """In which order the stages compute their microbatches."""
    virtual_stages: Degree = Field(
        default_factory=lambda data: 2 if data["schedule"] == "interleaved" else 1
    )
    """Parts of the model on each worker of a pipeline; 2 with "interleaved", 1 without."""
    layers: Annotated[tuple[Dimension, ...], Field(strict=False, max_length=MAX_DEGREE)] = ()
    """Layers of each stage, such as [3, 5], for pipelines of `pp` stages; as even as can be by
    default.
    """
    cp: Degree = 1
    """Workers that share each sequence: each has two runs of its tokens."""
    ep: Degree = 1
    """Replicas that share the experts of a layer; they are some of those of `dp`."""
    sequence: bool = False
    """The ranks of a tp group share the tokens between the split layers too."""
    allow_cross_node_tp: bool = False
    """A tp group may straddle nodes."""


class ZeroTable(BaseModel):
    """What replicas share instead of holding it whole: from `stage` 1 on the optimizer's state and
    the master weights, from 2 on the gradients, from 3 on the weights.

    `group` replicas share one copy, all of them if it is 0. Gradients travel in buckets of whole
    blocks of up to `bucket_bytes`. `keep_gathered` keeps weights of stage 3 from forward to
    backward.
    """

    model_config = TABLE
    stage: Annotated[int, Field(ge=0, le=3)] = 0
    """What replicas share: 1 the optimizer's state, 2 gradients too, 3 weights too."""
    group: DegreeOrZero = 0
    """So many replicas share one copy; 0 stands for all of them."""
    bucket_bytes: Count = BUCKET_BYTES
    """Bytes of gradients that travel at once."""
    keep_gathered: bool = False
    """At stage 3, weights are kept from forward to backward."""

    @model_validator(mode="after")
    def _stage_gathers(self) -> Self:
        if self.keep_gathered and self.stage != 3:  # noqa: PLR2004 - the stage's own name
            msg = (
                f"zero.keep_gathered = true: zero.stage = {self.stage} gathers no weights; set "
                f"zero.keep_gathered = false, or zero.stage = 3"
            )
            raise ValueError(msg)
        return self


class CheckpointTable(BaseModel):
    """A run is its `dir`, `runs/NAME` by default. Checkpoints lie at `url`, by default there too.

    One is saved at every `every`-th step. Those that stay are the newest `keep`, the `keep_best`
    with the lowest loss, those of every `keep_every`-th step, and one that is 50 to 150 steps old.

    After every `snapshot_every`-th step what only one node holds goes to the vaults of two: as
    often as costs less than a hundredth of a step with "auto", and every two seconds unless that
    costs a tenth, never with 0. A vault takes up to `vault_bytes` of its node's memory, as much as
    it needs if that is 0.
    """

    model_config = TABLE
    dir: Folder | None = None
    """Folder of the run; `runs/NAME` by default."""
    url: FolderOrUrl | None = None
    """Where checkpoints lie, any URL that fsspec knows; `dir` by default."""
    every: Count = 20
    """Steps from one checkpoint to the next."""
    keep: Count = 3
    """The newest ones that stay, besides one that is 50 to 150 steps old."""
    keep_every: CountOrZero = 0
    """Those of every so many steps stay too; 0 stands for none."""
    keep_best: CountOrZero = 0
    """So many with the lowest loss stay too."""
    snapshot_every: CountOrZero | Literal["auto"] = "auto"
    """Steps between snapshots in memory; 0 is never, "auto" as often as costs under a hundredth of
    a step, and every two seconds unless that costs a tenth.
    """
    vault_bytes: CountOrZero = 0
    """Bytes of a node's memory for snapshots; 0 stands for as many as are needed."""


class ElasticTable(BaseModel):
    """How far the run may shrink and grow, and how long it waits.

    `patience_s` is the one knob that every deadline follows from: silence longer than that makes a
    node or a worker a suspect. More than `max_failures` failures without `healthy_steps` steps in
    between end the run. `wait_limit_s` bounds the wait for enough workers. A submitted run goes on
    without its driver for `orphan_after_s`, so that it survives a restart of the head.

    The run uses up to `max_nodes` nodes of the cluster, all of them if it is left out; it waits
    while there are fewer than `min_nodes`.

    Without `same_bits` single microbatches are dealt out and gradients added up as is fastest: the
    bits then depend on the number of workers and on `zero`.

    Pipelines may have any of `pp` stages instead of `parallel.pp`: of the meshes that there are
    workers for the largest one is taken, of equally large ones that which is named first,
    `parallel.pp` before all others.

    Likewise groups may have any of `tp`, rings any of `cp`, and any of `ep` replicas share experts.
    These change the bits, so they are taken only where a mesh of the job's own has no room, and
    left as soon as one has.
    """

    model_config = TABLE
    min_nodes: Degree = 1
    """Below so many nodes the run waits."""
    max_nodes: Degree | None = None
    """More nodes than these are spares; all are used by default."""
    max_workers: Degree = 4
    """Largest number of workers in the mesh, by which the number of leaves is chosen."""
    min_workers: Degree = 1
    """Below so many workers the run waits."""
    pp: Degrees = ()
    """Other numbers of stages that a pipeline may have, such as [4, 2, 1], the best one first; only
    those of `parallel.pp` by default.
    """
    tp: Degrees = ()
    """Other numbers of workers that may share each layer, such as [2, 1]; other bits, so only where
    there is no room for `parallel.tp`.
    """
    cp: Degrees = ()
    """Other numbers of workers that may share each sequence, likewise."""
    ep: Degrees = ()
    """Other numbers of replicas that may share the experts of a layer, likewise."""
    spares: DegreeOrZero = 0
    """Warm workers beside the mesh."""
    max_failures: CountOrZero = 8
    """Failures without `healthy_steps` steps in between that end no run."""
    healthy_steps: Count = 100
    """Steps after which failures are forgiven."""
    patience_s: Annotated[float, Field(ge=0.1, le=60)] = 0.5
    """Seconds of silence after which a node or worker is a suspect; every deadline follows from
    it.
    """
    wait_limit_s: Positive = 600.0
    """Seconds that a run waits for enough workers."""
    orphan_after_s: Positive = 1800.0
    """Seconds that a submitted run goes on without its driver."""
    same_bits: bool = True
    """Same bits at every number of workers; without it steps may be faster."""


class MetricsTable(BaseModel):
    """Where Prometheus finds the run's metrics without a token: `port` 0 is a free one.

    Left out, the metrics are at the status port only, which wants the token. `host` is an address
    of the controller's node; 0.0.0.0, for all of them, shows the metrics to the whole network.
    `names` are those of the internet by which they may be asked; others are no names of this node.
    """

    model_config = TABLE
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of the metrics; 0 picks a free one, and without one they need the token of the status
    port.
    """
    host: str = "127.0.0.1"
    """IPv4 address of the controller's node at which they are; 0.0.0.0 shows them to the whole
    network.
    """
    names: Annotated[tuple[str, ...], Field(strict=False, max_length=100)] = ()
    """Names of the internet by which they may be asked, such as ["head.example.org"]."""

    @model_validator(mode="after")
    def _host_is_an_address(self) -> Self:
        try:
            IPv4Address(self.host)
        except ValueError:
            msg = f"metrics.host = {self.host!r} is no IPv4 address; use 127.0.0.1, or 0.0.0.0"
            raise ValueError(msg) from None
        return self
