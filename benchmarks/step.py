"""Tokens a second of whole training steps: Remesh against DDP, FSDP2 and DTensor's TP of torch.

A step is forward, backward, the reduction of gradients, clipping and AdamW, of one microbatch a
replica. All train the same model with the same kernels on gloo, in the same processes, in turns.
Each peer runs with its fastest settings; Remesh both with the same bits at every number of replicas
and without that promise.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from measuring.ranks import in_turns, on_ranks, share_store
from measuring.rows import Row, rate, report
from peers.engine_peers import PEERS, Recipe, tuned
from torch import distributed as dist

from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import EngineSpec, ZeroSpec
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.work import Work

Step = Callable[[], None]
Fill = Callable[[int, np.ndarray], tuple[int, int, int]]
SEQ_LEN = 128
ADAMW = AdamW()
LR, CLIP = 3e-4, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model, how many sequences a microbatch has, how many steps a turn: a turn is 0.1-1 s."""

    width: int
    num_heads: int
    ffn_width: int
    microbatch: int
    steps: int
    seq_len: int = SEQ_LEN
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Milliseconds a step."""

    settings: str
    same_bits: float
    any_bits: float
    peer: float


SIZES = (
    Size(width=64, num_heads=4, ffn_width=192, microbatch=4, steps=5),
    Size(width=256, num_heads=4, ffn_width=704, microbatch=2, steps=2),
    Size(width=768, num_heads=12, ffn_width=2048, microbatch=1, steps=1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 ranks, small models, fewer rounds")
    parser.add_argument(
        "--peer", choices=PEERS, action="append", help="only this one, to a file of its own"
    )
    parser.add_argument("--rounds", type=int, help="turns of each contestant")
    arguments = parser.parse_args()
    sizes, rounds = (SIZES[:2], 5) if arguments.quick else (SIZES, 15)
    rounds = arguments.rounds or rounds
    rows = []
    for kind in arguments.peer or PEERS:
        for ranks in (2,) if arguments.quick else (2, 4):
            results = on_ranks(ranks, measure, kind, sizes, rounds)
            for size, result in zip(sizes, results, strict=True):
                rows += rows_of(kind, ranks, size, result)
    report("-".join(["step", *(arguments.peer or ())]), rows)


def rows_of(kind: str, ranks: int, size: Size, result: Result) -> list[Row]:
    replicas = 1 if kind == "tensor" else ranks
    tokens = replicas * size.microbatch * SEQ_LEN
    peer = f"{PEERS[kind].name} ({result.settings})"
    return [
        rate(
            f"width {size.width}, {ranks} ranks, {bits}",
            peer,
            (1e3 * tokens / ours, 1e3 * tokens / result.peer),
            "tokens/s",
        )
        for bits, ours in (("any bits", result.any_bits), ("same bits", result.same_bits))
    ]


def measure(
    rendezvous: Rendezvous, kind: str, sizes: tuple[Size, ...], rounds: int
) -> list[Result]:
    mesh = form_mesh(rendezvous, kind)
    store = share_store(mesh.world, rendezvous.op_timeout_s)
    dist.init_process_group("gloo", store=store, rank=mesh.world.rank, world_size=mesh.world.size)
    results = [measure_size(mesh, kind, size, rounds) for size in sizes]
    mesh.close()
    return results


def measure_size(mesh: Mesh, kind: str, size: Size, rounds: int) -> Result:
    recipe = Recipe(model=size.model, adamw=ADAMW, lr=LR, clip=CLIP)
    fill = filling(mesh.data.rank)
    tokens = np.empty((size.microbatch, SEQ_LEN + 1), dtype=np.uint16)

    def batch() -> torch.Tensor:
        fill(0, tokens)
        return torch.from_numpy(tokens.astype(np.int64))

    trainer, settings = tuned(PEERS[kind], recipe, mesh.world, batch())
    contestants = (
        remesh_step(mesh, kind, size, same_bits=True),
        remesh_step(mesh, kind, size, same_bits=False),
        lambda: trainer.step(batch()),
    )
    turns = [repeated(step, size.steps) for step in contestants]
    same_bits, any_bits, theirs = (ms / size.steps for ms in in_turns(mesh.world, turns, rounds))
    return Result(
        settings=" ".join(f"{name}={value}" for name, value in settings.items()),
        same_bits=same_bits,
        any_bits=any_bits,
        peer=theirs,
    )


def repeated(step: Step, times: int) -> Step:
    def turn() -> None:
        for _ in range(times):
            step()

    return turn


def filling(seed: int) -> Fill:
    """Puts the same random tokens into whatever is to be filled."""
    tokens = np.random.default_rng(seed).integers(0, 256, 1 << 16, np.uint16)

    def fill(first: int, out: np.ndarray) -> tuple[int, int, int]:
        del first
        out[:] = tokens[: out.size].reshape(out.shape)
        return 0, 0, len(out)

    return fill


def form_mesh(rendezvous: Rendezvous, kind: str) -> Mesh:
    ranks = rendezvous.size
    layout = Layout(tp=ranks) if kind == "tensor" else Layout(dp=ranks)
    return Mesh.form(rendezvous, GenerationFence(), layout, ranks if kind == "fsdp2" else 1)


def remesh_step(mesh: Mesh, kind: str, size: Size, *, same_bits: bool) -> Step:
    """As the peer, with a bucket a layer for ZeRO 3."""
    zero = ZeroSpec(stage=3, bucket_bytes=1) if kind == "fsdp2" else ZeroSpec()
    spec = EngineSpec(
        model=size.model,
        seed=0,
        num_leaves=mesh.data.size,
        microbatches_per_leaf=1,
        microbatch=size.microbatch,
        lr=LrCurve(peak=LR),
        optimizer=ADAMW,
        clip=CLIP,
        zero=zero,
        same_bits=same_bits,
    )
    return stepping(mesh, spec, filling(mesh.data.rank))


def stepping(mesh: Mesh, spec: EngineSpec, fill: Fill) -> Step:
    """One step of a new engine after the other."""
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


if __name__ == "__main__":
    main()
