"""One plain training loop under torchrun, Ray Train and torchft, for `recovery.py` to disturb.

Needs none of Remesh: it runs under a Python of its own, where the peers are installed. Every rank
appends (pid, step, moment of its end) to a file of its own in the folder. The model has the sizes
of examples/tiny.toml; tokens are random, so that no reader of data is measured. torchrun and Ray
Train save every tenth step, the way their guides show; torchft takes the state from a living peer.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, HEADS, FFN, VOCAB, LENGTH = 4, 128, 4, 352, 256, 128
BATCH = 24  # sequences of all ranks
RANKS = 4
STEPS = 60
SAVE_EVERY = 10

State = dict[str, Any]
Save = Callable[[int, State], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * FFN, bias=False)
        self.down = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def model() -> nn.Module:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = [Block() for _ in range(LAYERS)]
    head = [nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)]
    return nn.Sequential(nn.Embedding(VOCAB, WIDTH), *blocks, *head)


def backward(net: nn.Module, step: int, rank: int, ranks: int) -> None:
    draw = torch.Generator().manual_seed(step * RANKS + rank)
    tokens = torch.randint(VOCAB, (BATCH // ranks, LENGTH + 1), generator=draw)
    logits = net(tokens[:, :-1]).flatten(0, 1)
    functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()


class Diary:
    """What a rank has done, for whoever looks at the folder."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"steps-{os.getpid()}.jsonl").open("a", buffering=1)

    def note(self, step: int) -> None:
        self._file.write(json.dumps([os.getpid(), step, time.time()]) + "\n")


def train(net: nn.Module, states: State | None, rank: int, folder: Path, save: Save) -> None:
    """Data parallel by DDP, from where the saved states end."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    if states:
        net.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
    diary = Diary(folder)
    for step in range(states["step"] + 1 if states else 1, STEPS + 1):
        optimizer.zero_grad()
        backward(net, step, rank, RANKS)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        diary.note(step)
        if step % SAVE_EVERY == 0:
            save(step, {"model": net.state_dict(), "optimizer": optimizer.state_dict()})


def torchrun(folder: Path) -> None:
    """A rank; torchrun starts all of them again when one has died."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    kept = folder / "checkpoint.pt"

    def save(step: int, state: State) -> None:
        if rank == 0:
            torch.save({"step": step, **state}, folder / "unfinished.pt")
            (folder / "unfinished.pt").replace(kept)
        dist.barrier()

    states = torch.load(kept, weights_only=False) if kept.exists() else None
    train(DistributedDataParallel(model()), states, rank, folder, save)


def ray_train(folder: Path) -> None:
    """The driver of four workers."""
    import ray
    import ray.train.torch
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    ray.init(num_cpus=RANKS, include_dashboard=False, logging_level="error")
    ray.train.torch.TorchTrainer(
        ray_worker,
        train_loop_config={"folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=RANKS),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        run_config=RunConfig(
            storage_path=str(folder / "storage"),
            name="recovery",
            failure_config=FailureConfig(max_failures=3),
        ),
    ).fit()


def ray_worker(config: dict[str, str]) -> None:
    import ray.train
    import ray.train.torch

    folder = Path(config["folder"])
    rank = ray.train.get_context().get_world_rank()

    def save(step: int, state: State) -> None:
        if rank:
            ray.train.report({"step": step})
            return
        place = folder / f"kept-{step}"
        place.mkdir(exist_ok=True)
        torch.save({"step": step, **state}, place / "state.pt")
        ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(place))

    states = None
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as place:
            states = torch.load(Path(place) / "state.pt", weights_only=False)
    train(ray.train.torch.prepare_model(model()), states, rank, folder, save)


def torchft(folder: Path) -> None:
    """One replica; the others go on without it when it dies."""
    from torchft import Manager, Optimizer, ProcessGroupGloo

    net = model()
    adamw = torch.optim.AdamW(net.parameters(), lr=3e-3)

    def give() -> State:
        return {"model": net.state_dict(), "optimizer": adamw.state_dict()}

    def take(states: State) -> None:
        net.load_state_dict(states["model"])
        adamw.load_state_dict(states["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=take,
        state_dict=give,
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica-{os.getpid()}",
    )
    optimizer = Optimizer(manager, adamw)
    diary = Diary(folder)
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        backward(net, manager.current_step(), manager.participating_rank() or 0, RANKS)
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        manager.allreduce(flat).wait()
        pieces = flat.split([p.numel() for p in net.parameters()])
        for parameter, piece in zip(net.parameters(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        diary.note(manager.current_step())
    manager.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["torchrun", "ray-train", "torchft"])
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    {"torchrun": torchrun, "ray-train": ray_train, "torchft": torchft}[asked.peer](asked.folder)
