"""Pipelines: bubbles against their prediction, and steps against torch.distributed.pipelining.

A bubble is measured with stages that sleep for a fixed time instead of computing, between the
borders and groups of a real step: so more ranks than cores can be told apart. What is predicted is
the timeline of the same lists with the same times, and with that of a message between two ranks
that have slept, as it is measured here. A step is forward and backward of all
microbatches, norm and AdamW; both train the same model with the same kernels on gloo, in the same
processes, in turns. Beside the time of a step stands that of the processors in all ranks, which
others on this machine do not change.
"""

import argparse
import math
import statistics
import time
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch
from measuring.ranks import in_turns, on_ranks, share_store
from measuring.rows import Row, cost, report
from peers.pipeline_peers import SCHEDULES, PipelinePart, TorchPipeline
from step import ADAMW, CLIP, LR, Step, filling
from torch import Tensor
from torch import distributed as dist

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.pipes import exchange
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.numerics.losses import Losses
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.catalogue import pipeline_of, schedules_of
from remesh.parallel.plan.schedules.operations import Pass, Reduce
from remesh.parallel.plan.schedules.replica_slots import slots_alone
from remesh.parallel.plan.schedules.timing.timeline import PassCosts, time_line
from remesh.parallel.spec import EngineSpec
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.interpreter import Interpreter
from remesh.parallel.step.stage import Passage
from remesh.parallel.step.work import Work

MODEL = ModelConfig(
    num_layers=8,
    width=256,
    num_heads=4,
    num_kv_heads=4,
    ffn_width=704,
    vocab_size=256,
    seq_len=128,
)
TINY = ModelConfig(
    num_layers=8, width=8, num_heads=1, num_kv_heads=1, ffn_width=8, vocab_size=16, seq_len=8
)
Costs = tuple[float, float]  # Remesh's, the other's
MICROBATCH = 2
VIRTUAL_STAGES = 2
MESSAGES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How much is measured. `unit_s` is what a rank sleeps for a forward through its layers."""

    bubble_ranks: int = 4
    unit_s: float = 0.3
    bubble_rounds: int = 3
    step_ranks: tuple[int, ...] = (2, 4)
    rounds: int = 5
    microbatches: int = 8


QUICK = Setting(unit_s=0.02, bubble_rounds=1, step_ranks=(2,), rounds=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short sleeps, 2 ranks, fewer rounds")
    setting = QUICK if parser.parse_args().quick else Setting()
    rows = bubble_rows(setting)
    for ranks in setting.step_ranks:
        rows += step_rows(ranks, setting)
    report("pipeline", rows)


def bubble_rows(setting: Setting) -> list[Row]:
    found, message_s = on_ranks(setting.bubble_ranks, measure_bubbles, setting)
    return [
        cost(
            f"bubble of {name}, p={setting.bubble_ranks}, m={setting.microbatches}",
            f"timeline simulator, {1e3 * message_s:.1f} ms a message",
            (100 * measured, 100 * predicted(name, setting, message_s)),
            "% idle",
        )
        for name, measured in found.items()
    ]


def predicted(name: str, setting: Setting, message_s: float) -> float:
    pipeline = pipeline_of(name, setting.bubble_ranks, VIRTUAL_STAGES)
    unit, message = Fraction(1, pipeline.chunks), Fraction(message_s / setting.unit_s)
    costs = PassCosts(forward=unit, input=unit, weight=unit, message=message)
    lists = schedules_of(name, pipeline, slots_alone(setting.microbatches))
    return float(time_line(lists, costs).bubble)


def measure_bubbles(rendezvous: Rendezvous, setting: Setting) -> tuple[dict[str, float], float]:
    """Shares by schedule, and seconds that a message takes."""
    mesh = Mesh.form(rendezvous, GenerationFence(), Layout(pp=rendezvous.size))
    message_s = measure_message(mesh, setting.unit_s)
    found = {}
    for name in SCHEDULES:
        engine, work = pipelined(mesh, TINY, name, setting.microbatches)
        shares = [idle_share(engine, work, setting.unit_s) for _ in range(setting.bubble_rounds)]
        found[name] = sorted(shares)[len(shares) // 2]
    mesh.close()
    return found, message_s


def measure_message(mesh: Mesh, pause_s: float) -> float:
    """Median from the first rank to the second one; all processes have one clock."""
    shape, size = (MICROBATCH, TINY.seq_len, TINY.width), MICROBATCH * TINY.seq_len * TINY.width
    times = torch.zeros(MESSAGES, dtype=torch.float64)
    for number in range(MESSAGES):
        if mesh.position == 0:
            time.sleep(pause_s)
            sent = torch.full((size,), time.perf_counter(), dtype=torch.float64).view(shape)
            exchange([(mesh.pipes[1], sent)], [])[0].wait()
        elif mesh.position == 1:
            got = torch.empty(shape, dtype=torch.float64)
            exchange([], [(mesh.pipes[0], got)])[0].wait()
            times[number] = time.perf_counter() - got.flatten()[0].item()
    all_reduce_(mesh.world, times)
    return times.median().item()


def idle_share(engine: Engine, work: Work, unit_s: float) -> float:
    """Of all ranks' time between the first operation and the last one."""
    assembly, world = engine.assembly, work.mesh.world
    pipeline = assembly.state.held.cut.pipeline
    stages = {
        stage: Sleeping(unit_s / pipeline.chunks, torch.zeros(assembly.border_shape.shape), stage)
        for stage in assembly.stages
    }
    assembly.stages = stages  # type: ignore[assignment]  # what the interpreter asks of one
    interpreter = Interpreter(1, work, assembly)
    all_reduce_(world, torch.ones(1))
    started_s = time.perf_counter()
    for operation in assembly.schedule:
        if isinstance(operation, Reduce):
            break
        interpreter.carry_out(operation)
    interpreter._borders.finish()  # noqa: SLF001 - the rest of a step would compute
    all_reduce_(world, torch.ones(1))
    taken_s = time.perf_counter() - started_s
    busy = torch.tensor([sum(stage.slept_s for stage in stages.values())], dtype=torch.float64)
    all_reduce_(world, busy)
    return 1 - busy.item() / (taken_s * world.size)


@dataclass(slots=True)
class Sleeping:
    """A stage whose passes take a fixed time and no processor. `slept_s` is what they took."""

    pass_s: float
    output: Tensor
    stage: int
    slept_s: float = field(default=0.0)

    def forward(self, x: Tensor, targets: Tensor | None) -> Passage:
        self._sleep(1)
        losses = None
        if targets is not None:
            zero = torch.zeros(())
            losses = Losses(objective=zero, cross_entropy=zero, num_tokens=torch.tensor(1))
        return Passage(inputs=[x], outputs=[self.output.clone()], losses=losses)

    def backward(self, *_: object, ends_leaf: bool) -> Tensor | None:
        del ends_leaf
        self._sleep(2)
        return self.output.clone() if self.stage else None

    def backward_input(self, *_: object) -> Tensor | None:
        self._sleep(1)
        return self.output.clone() if self.stage else None

    def backward_weights(self, *_: object, ends_leaf: bool) -> None:
        del ends_leaf
        self._sleep(1)

    def keep_company(self, what: Pass, *, ends_leaf: bool) -> None:
        raise AssertionError((what, ends_leaf))  # one replica has no empty visits

    def _sleep(self, passes: int) -> None:
        started_s = time.perf_counter()
        time.sleep(passes * self.pass_s)
        self.slept_s += time.perf_counter() - started_s


def step_rows(ranks: int, setting: Setting) -> list[Row]:
    found = on_ranks(ranks, measure_steps, setting)
    return [
        cost(
            f"{what} of {name}, p={ranks}, m={setting.microbatches}",
            f"torch {SCHEDULES[name].__name__}",
            times,
            "ms",
        )
        for name, costs in found.items()
        for what, times in zip(("step", "processors"), costs, strict=True)
    ]


def measure_steps(rendezvous: Rendezvous, setting: Setting) -> dict[str, list[Costs]]:
    """Milliseconds a step of Remesh and of torch, then those of all processors, by schedule."""
    mesh = Mesh.form(rendezvous, GenerationFence(), Layout(pp=rendezvous.size))
    store = share_store(mesh.world, rendezvous.op_timeout_s)
    dist.init_process_group("gloo", store=store, rank=mesh.world.rank, world_size=mesh.world.size)
    found = {}
    for name in SCHEDULES:
        engine, work = pipelined(mesh, MODEL, name, setting.microbatches)
        theirs = torchs_own(mesh, name, setting.microbatches)
        tokens = batch_of(work, setting.microbatches)
        check_same(engine.step(1, work).loss, theirs, tokens)

        def ours(engine: Engine = engine, work: Work = work) -> None:
            assert engine.at_step is not None
            engine.step(engine.at_step + 1, work)

        def torchs(theirs: TorchPipeline = theirs, tokens: Tensor = tokens) -> None:
            theirs.step(tokens)

        turns = [Turn(run) for run in (ours, torchs)]
        remesh_ms, torch_ms = in_turns(mesh.world, turns, setting.rounds)
        spent = torch.tensor([turn.median_ms for turn in turns], dtype=torch.float64)
        all_reduce_(mesh.world, spent)
        found[name] = [(remesh_ms, torch_ms), (spent[0].item(), spent[1].item())]
    mesh.close()
    return found


class Turn:
    """A step, and what of this process's processor each of them took."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._spent_ms: list[float] = []

    def __call__(self) -> None:
        before_s = time.process_time()
        self._step()
        self._spent_ms.append(1e3 * (time.process_time() - before_s))

    @property
    def median_ms(self) -> float:
        """Without the first one, which warms up."""
        return statistics.median(self._spent_ms[1:])


def batch_of(work: Work, num_microbatches: int) -> Tensor:
    """The tokens of a step as `work` fills them in."""
    microbatch = np.empty((MICROBATCH, MODEL.seq_len + 1), dtype=np.uint16)
    parts = []
    for number in range(num_microbatches):
        work.fill(number * MICROBATCH, microbatch)
        parts.append(torch.from_numpy(microbatch.astype(np.int64)))
    return torch.cat(parts)


def check_same(loss: float, theirs: TorchPipeline, tokens: Tensor) -> None:
    """Whether the first step of both has one loss, on the rank that knows torch's."""
    theirs.step(tokens)
    if not math.isnan(theirs.loss) and not math.isclose(loss, theirs.loss, rel_tol=1e-5):
        raise SystemExit(f"the loss is {loss} here and {theirs.loss} with torch")


def pipelined(mesh: Mesh, model: ModelConfig, name: str, microbatches: int) -> tuple[Engine, Work]:
    """One leaf: torch adds the gradients of all microbatches in one buffer too."""
    spec = EngineSpec(
        model=model,
        seed=0,
        num_leaves=1,
        microbatches_per_leaf=microbatches,
        microbatch=MICROBATCH,
        lr=LrCurve(peak=LR),
        optimizer=ADAMW,
        clip=CLIP,
    )
    engine = Engine(spec)
    engine.form(mesh, schedule=name, pipeline=pipeline_for(name, mesh))
    engine.reset()
    work = Work(
        mesh=mesh,
        fence=mesh.world.fence,
        generation=mesh.world.generation,
        fill=filling(0),
        write_digest=str,
        stamp=lambda *_: None,
    )
    return engine, work


def torchs_own(mesh: Mesh, name: str, microbatches: int) -> TorchPipeline:
    model = Transformer(MODEL)
    model.reset(0)
    part = PipelinePart(
        model=model, pipeline=pipeline_for(name, mesh), adamw=ADAMW, lr=LR, clip=CLIP
    )
    return TorchPipeline(name, part, microbatches)


def pipeline_for(name: str, mesh: Mesh) -> Pipeline:
    return pipeline_of(name, mesh.layout.pp, VIRTUAL_STAGES)


if __name__ == "__main__":
    main()
