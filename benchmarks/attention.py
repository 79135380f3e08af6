"""Processor time of attention in a ring, all ranks together, against one process with all tokens.

Forward and backward of the same causal attention. A ring has more to do: blocks are joined, keys
and values are sent, and their gradients brought home. Time is that of processors and not of clocks,
so that it says the same on a machine of fewer cores than ranks.

And of experts, forward and backward, in one process: tokens sorted by expert, their products, and
what comes of them put together, against a loop over the experts. Both choose alike, at random.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from measuring.ranks import on_ranks
from measuring.rows import Row, cost, report
from peers.expert_loop import expert_loop
from torch import Tensor
from torch.nn import functional

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.group import Group
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.model.dispatch import combine, dispatch
from remesh.parallel.model.experts import Experts
from remesh.parallel.model.maths import Whole
from remesh.parallel.model.router import route
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.techniques.context import ContextParallel

HEAD_WIDTH = 64
PEER = "torch SDPA, one process"
LOOP = "loop over experts"
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Pass = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    tokens: int
    heads: int
    kv_heads: int
    dtype: str

    def drawn(self, tokens: int) -> list[Tensor]:
        """Queries, keys and values, and the gradient of the result."""
        generator = torch.Generator().manual_seed(0)
        heads = (self.heads, self.kv_heads, self.kv_heads, self.heads)
        shapes = ((1, count, tokens, HEAD_WIDTH) for count in heads)
        drawn = [torch.randn(shape, generator=generator) for shape in shapes]
        return [tensor.to(TYPES[self.dtype]) for tensor in drawn]

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.heads}/{self.kv_heads} heads, {self.dtype}"


SIZES = (
    Size(tokens=8192, heads=8, kv_heads=2, dtype="fp32"),
    Size(tokens=8192, heads=8, kv_heads=8, dtype="fp32"),
    Size(tokens=8192, heads=8, kv_heads=2, dtype="bf16"),
    Size(tokens=4096, heads=8, kv_heads=2, dtype="fp32"),
)
QUICK = SIZES[:2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSize:
    """Of a layer; a microbatch is two sequences of 1,024 tokens."""

    width: int
    experts: int
    expert_width: int
    top_k: int

    @property
    def model(self) -> ModelConfig:
        return ModelConfig(
            num_layers=1,
            width=self.width,
            num_heads=self.width // HEAD_WIDTH,
            num_kv_heads=self.width // HEAD_WIDTH,
            ffn_width=self.width,
            vocab_size=2,
            seq_len=1024,
            num_experts=self.experts,
            expert_width=self.expert_width,
            top_k=self.top_k,
        )

    def __str__(self) -> str:
        return f"{self.top_k} of {self.experts} experts of {self.expert_width}, width {self.width}"


EXPERTS = (
    ExpertsSize(width=512, experts=8, expert_width=1024, top_k=2),
    ExpertsSize(width=512, experts=32, expert_width=256, top_k=4),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    sizes, rounds = (QUICK, 3) if quick else (SIZES, 7)
    rows: list[Row] = []
    for ranks in (2, 4):
        for size, pair in zip(sizes, on_ranks(ranks, measure, sizes, rounds), strict=True):
            rows.append(cost(f"ring of {ranks}, {size}", PEER, pair, "ms"))
    rows += [cost(str(one), LOOP, expert_times(one, rounds), "ms") for one in EXPERTS]
    report("attention", rows)


def measure(
    rendezvous: Rendezvous, sizes: tuple[Size, ...], rounds: int
) -> list[tuple[float, float]]:
    """Milliseconds of processors of the ring, and of the one process, for each size."""
    mesh = Mesh.form(rendezvous, GenerationFence(), Layout(cp=rendezvous.size))
    found = []
    for size in sizes:
        ring, whole = ring_pass(mesh, size), whole_pass(size)
        times: list[tuple[float, float]] = []
        for _ in range(rounds + 1):
            alone = spent_ms(mesh.world, whole if mesh.world.rank == 0 else lambda: None)
            times.append((spent_ms(mesh.world, ring), alone))
        ours, theirs = zip(*times[1:], strict=True)
        found.append((statistics.median(ours), statistics.median(theirs)))
    mesh.close()
    return found


def spent_ms(group: Group, run: Pass) -> float:
    """By the processes of all ranks, whatever thread of theirs did it."""
    all_reduce_(group, torch.ones(1))
    start = time.process_time()
    run()
    spent = torch.tensor([1e3 * (time.process_time() - start)])
    all_reduce_(group, spent)
    return spent.item()


def ring_pass(mesh: Mesh, size: Size) -> Pass:
    maths = ContextParallel(Whole(), mesh.ring)
    q, k, v, gradient = size.drawn(size.tokens // mesh.ring.size)
    tensors = [tensor.requires_grad_() for tensor in (q, k, v)]

    def run() -> None:
        torch.autograd.grad(maths.attend(*tensors, None), tensors, gradient)

    return run


def whole_pass(size: Size) -> Pass:
    q, k, v, gradient = size.drawn(size.tokens)
    tensors = [tensor.requires_grad_() for tensor in (q, k, v)]

    def run() -> None:
        out = functional.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
        torch.autograd.grad(out, tensors, gradient)

    return run


def expert_times(size: ExpertsSize, rounds: int) -> tuple[float, float]:
    """Milliseconds of this process, and of the loop."""
    torch.set_num_threads(1)
    config, generator = size.model, torch.Generator().manual_seed(0)
    experts = Experts(config, Whole())
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    x_BTC = torch.randn(2, config.seq_len, config.width, generator=generator).requires_grad_()
    logits_BTE = torch.randn(2, config.seq_len, config.num_experts, generator=generator)
    routing, _ = route(config, logits_BTE, None)
    weights_BTK = routing.weights.requires_grad_()
    gradient_BTC = torch.randn(x_BTC.shape, generator=generator)
    asked = [x_BTC, weights_BTK, *experts.parameters()]

    def ours() -> Tensor:
        sent = dispatch(x_BTC, routing.chosen, config)
        rows_MC = experts(sent.rows, sent.counts)
        return combine(rows_MC, weights_BTK, sent.places, sent.shape)

    def loop() -> Tensor:
        flat = (tensor.flatten(0, 1) for tensor in (x_BTC, routing.chosen, weights_BTK))
        return expert_loop(*flat, list(experts.parameters())).view_as(x_BTC)

    def spent(compute: Callable[[], Tensor]) -> float:
        start = time.process_time()
        torch.autograd.grad(compute(), asked, gradient_BTC)
        return 1e3 * (time.process_time() - start)

    torch.testing.assert_close(ours(), loop())
    times = [(spent(ours), spent(loop)) for _ in range(rounds + 1)][1:]
    ours_ms, theirs_ms = zip(*times, strict=True)
    return statistics.median(ours_ms), statistics.median(theirs_ms)


if __name__ == "__main__":
    main()
