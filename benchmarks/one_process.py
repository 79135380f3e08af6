"""Milliseconds of a processor a step: Remesh in one process against a loop written by hand.

Processor time, since one process waits for nobody, and others on the machine do not count. The loop
has fused products, plain autograd and torch's fused AdamW (peers/plain_loop.py). `fixed` is a model
of one layer and 8 positions, of which next to nothing is computed: what is left is what each of
them does anyway.
"""

import argparse
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from measuring.ranks import in_turns, on_ranks
from measuring.rows import cost, report
from peers.plain_loop import PlainLoop
from step import ADAMW, CLIP, LR, Fill, Size, Step, repeated, stepping

from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.spec import EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A size, and a batch of so many of its microbatches."""

    name: str
    size: Size
    num_microbatches: int = 1


NARROW = Size(width=64, num_heads=4, ffn_width=192, microbatch=4, steps=10)
TINY = replace(NARROW, microbatch=1, steps=100, seq_len=8, num_layers=1)
WIDE = Size(width=256, num_heads=4, ffn_width=704, microbatch=2, steps=3)
WIDEST = Size(width=768, num_heads=12, ffn_width=2048, microbatch=1, steps=1)
SETTINGS = (
    Setting(name="fixed", size=TINY),
    Setting(name="width 64", size=NARROW),
    Setting(name="width 64, 12 microbatches", size=replace(NARROW, steps=1), num_microbatches=12),
    Setting(name="width 256", size=WIDE),
    Setting(name="width 768", size=WIDEST),
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
    size = setting.size
    tokens = np.random.default_rng(0).integers(
        0, 256, (setting.num_microbatches, size.microbatch, size.seq_len + 1), np.uint16
    )

    def fill(first: int, out: np.ndarray) -> tuple[int, int, int]:
        out[:] = tokens[first // size.microbatch]
        return 0, 0, len(out)

    loop = PlainLoop(size.model, ADAMW, lr=LR, clip=CLIP)
    contestants = (
        remesh_step(mesh, setting, fill),
        lambda: loop.step([torch.from_numpy(rows.astype(np.int64)) for rows in tokens]),
    )
    turns = [repeated(step, size.steps) for step in contestants]
    found = in_turns(mesh.world, turns, rounds, clock=time.process_time)
    ours, theirs = (ms / size.steps for ms in found)
    return ours, theirs


def remesh_step(mesh: Mesh, setting: Setting, fill: Fill) -> Step:
    """Each microbatch is a leaf, as in a job that may have many replicas."""
    spec = EngineSpec(
        model=setting.size.model,
        seed=0,
        num_leaves=setting.num_microbatches,
        microbatches_per_leaf=1,
        microbatch=setting.size.microbatch,
        lr=LrCurve(peak=LR),
        optimizer=ADAMW,
        clip=CLIP,
        num_segments=4,
    )
    return stepping(mesh, spec, fill)


if __name__ == "__main__":
    main()
