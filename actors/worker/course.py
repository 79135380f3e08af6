"""What a worker trains with at each step: its engine and stream are set by job and amendments."""

import torch

from remesh.data.skips import parse_skips
from remesh.data.stream import Stream
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.job.job import Job
from remesh.parallel.model.recompute import Recompute
from remesh.parallel.model.router import RouterRates
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import EngineSpec, Precision, ZeroSpec
from remesh.parallel.step.engine import Engine

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Course:
    """Sets engine and stream before a step, where another value begins to hold."""

    def __init__(self, job: Job, engine: Engine, stream: Stream) -> None:
        self._job = job
        self._engine = engine
        self._stream = stream
        self._amendments: Amendments = ()
        self._turns: frozenset[int] = frozenset()

    def enter(self, amendments: Amendments, from_step: int) -> None:
        """The steps after this one are next."""
        self._amendments = amendments
        self._turns = frozenset({from_step + 1, *(one.step for one in amendments)})

    def before(self, step: int) -> None:
        """Cost: a comparison, and where a value changes an assembly of the engine."""
        if step in self._turns:
            job = self._job.at(step, self._amendments)
            self._engine.change(engine_spec(job))
            self._stream.skip(parse_skips(job.data.skip))


def engine_spec(job: Job) -> EngineSpec:
    """All of the job that the bits of a step depend on."""
    train = job.train
    return EngineSpec(
        model=ModelConfig(seq_len=train.seq_len, **job.model.model_dump()),
        seed=job.job.seed,
        num_leaves=job.num_leaves,
        microbatches_per_leaf=job.num_microbatches // job.num_leaves,
        microbatch=train.microbatch,
        lr=LrCurve(
            peak=train.lr,
            kind=train.lr_curve,
            warmup_steps=train.warmup_steps,
            min_lr=train.min_lr,
            lr_steps=train.lr_steps,
        ),
        optimizer=AdamW(
            beta1=train.beta1,
            beta2=train.beta2,
            eps=train.eps,
            weight_decay=train.weight_decay,
        ),
        clip=train.clip,
        z_loss=train.z_loss,
        router=RouterRates(
            auxiliary=train.auxiliary_loss,
            z_loss=train.router_z_loss,
            balance=train.balance_rate,
        ),
        precision=Precision(
            compute=_DTYPES[train.dtype], gradient=_DTYPES[train.grad_dtype], master=torch.float32
        ),
        zero=ZeroSpec(**job.zero.model_dump()),
        recompute=Recompute(mode=train.recompute, every=train.recompute_every),
        sequence=job.parallel.sequence,
        same_bits=job.elastic.same_bits,
        num_segments=job.num_segments,
    )
