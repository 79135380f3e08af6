"""What a run learns from, and how: the data, the steps, the learning rate."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from remesh.data.data_error import DataError
from remesh.data.skips import parse_skips
from remesh.orchestrator.job.tables.kinds import (
    TABLE,
    Count,
    CountOrZero,
    Decay,
    Dimension,
    FloatKind,
    Folder,
    NotNegative,
    Positive,
)
from remesh.orchestrator.user_text import count


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
            msg = 'and GPU ranks are not built yet; leave it out, or use "cpu"'
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
