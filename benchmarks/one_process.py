"""Milliseconds of a processor a step: Remesh in one process against a loop written by hand.

Processor time, since one process waits for nobody, and others on the machine do not count. The loop
has fused products, plain autograd and torch's fused AdamW (peers/plain_loop.py). `fixed` is a model
of one layer and 8 positions, of which next to nothing is computed: what is left is what each of
them does anyway.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from peers.plain_loop import PlainLoop
from ranks import in_turns, on_ranks
from rows import cost, report

from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import EngineSpec
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.work import Work

Step = Callable[[], None]
ADAMW = AdamW()
LR, CLIP = 3e-4, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model, a batch of so many microbatches, and how many steps a turn has."""

    name: str
    width: int
    num_heads: int
    ffn_width: int
    microbatch: int
    steps: int
    num_microbatches: int = 1
    seq_len: int = 128
    num_layers: int = 4

    @property
    def model(self) -> ModelConfig:
        return ModelConfig(
            num_layers=self.num_layers,
            width=self.width,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            ffn_width=self.ffn_width,
            vocab_size=256,
            seq_len=self.seq_len,
        )


SETTINGS = (
    Setting(
        name="fixed",
        width=64,
        num_heads=4,
        ffn_width=192,
        microbatch=1,
        steps=100,
        seq_len=8,
        num_layers=1,
    ),
    Setting(name="width 64", width=64, num_heads=4, ffn_width=192, microbatch=4, steps=10),
    Setting(
        name="width 64, 12 microbatches",
        width=64,
        num_heads=4,
        ffn_width=192,
        microbatch=4,
        steps=1,
        num_microbatches=12,
    ),
    Setting(name="width 256", width=256, num_heads=4, ffn_width=704, microbatch=2, steps=3),
    Setting(name="width 768", width=768, num_heads=12, ffn_width=2048, microbatch=1, steps=1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rounds", type=int, help="turns of each contestant")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (7 if arguments.quick else 25)
    found = on_ranks(1, measure, rounds)
    rows = [
        cost(setting.name, "a loop by hand", times, "ms")
        for setting, times in zip(SETTINGS, found, strict=True)
    ]
    report("one_process", rows)


def measure(rendezvous: Rendezvous, rounds: int) -> list[tuple[float, float]]:
    mesh = Mesh.form(rendezvous, GenerationFence())
    found = [measure_one(mesh, setting, rounds) for setting in SETTINGS]
    mesh.close()
    return found


def measure_one(mesh: Mesh, setting: Setting, rounds: int) -> tuple[float, float]:
    tokens = np.random.default_rng(0).integers(
        0, 256, (setting.num_microbatches, setting.microbatch, setting.seq_len + 1), np.uint16
    )

    def fill(first: int, out: np.ndarray) -> tuple[int, int, int]:
        out[:] = tokens[first // setting.microbatch]
        return 0, 0, len(out)

    loop = PlainLoop(setting.model, ADAMW, lr=LR, clip=CLIP)
    contestants = (
        remesh_step(mesh, setting, fill),
        lambda: loop.step([torch.from_numpy(rows.astype(np.int64)) for rows in tokens]),
    )
    turns = [repeated(step, setting.steps) for step in contestants]
    found = in_turns(mesh.world, turns, rounds, clock=time.process_time)
    ours, theirs = (ms / setting.steps for ms in found)
    return ours, theirs


def remesh_step(
    mesh: Mesh, setting: Setting, fill: Callable[[int, np.ndarray], tuple[int, int, int]]
) -> Step:
    """Each microbatch is a leaf, as in a job that may have many replicas."""
    spec = EngineSpec(
        model=setting.model,
        seed=0,
        num_leaves=setting.num_microbatches,
        microbatches_per_leaf=1,
        microbatch=setting.microbatch,
        lr=LrCurve(peak=LR),
        optimizer=ADAMW,
        clip=CLIP,
        num_segments=4,
    )
    engine = Engine(spec)
    engine.form(mesh)
    engine.reset()
    work = Work(
        mesh=mesh,
        fence=mesh.world.fence,
        generation=mesh.world.generation,
        fill=fill,
        write_digest=str,
        stamp=lambda *_: None,
    )

    def step() -> None:
        assert engine.at_step is not None
        engine.step(engine.at_step + 1, work)

    return step


def repeated(step: Step, times: int) -> Step:
    def turn() -> None:
        for _ in range(times):
            step()

    return turn


if __name__ == "__main__":
    main()
