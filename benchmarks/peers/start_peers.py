"""The first step of a plain training loop under torchrun or Ray Train, for `starts.py` to time.

Needs none of Remesh: it runs under a Python where the peers are installed. Each rank writes the
moment at which its step 1 has ended to a file in the folder. The loop is that of recovery_peers.py.
"""

import argparse
import time
from pathlib import Path

import torch
from recovery_peers import backward, model
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def first_step(net: nn.Module, folder: Path, rank: int, ranks: int) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    backward(net, 1, rank, ranks)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    (folder / f"ended-{rank}").write_text(str(time.time()))


def torchrun(folder: Path) -> None:
    dist.init_process_group("gloo")
    first_step(DistributedDataParallel(model()), folder, dist.get_rank(), dist.get_world_size())


def ray_train(folder: Path, ranks: int) -> None:
    """The driver of the workers."""
    import ray
    import ray.train.torch
    from ray.train import RunConfig, ScalingConfig

    ray.init(num_cpus=ranks, include_dashboard=False, logging_level="error")
    ray.train.torch.TorchTrainer(
        ray_worker,
        train_loop_config={"folder": str(folder), "ranks": ranks},
        scaling_config=ScalingConfig(num_workers=ranks),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=str(folder / "storage"), name="start"),
    ).fit()


def ray_worker(config: dict[str, str]) -> None:
    import ray.train
    import ray.train.torch

    rank = ray.train.get_context().get_world_rank()
    net = ray.train.torch.prepare_model(model())
    first_step(net, Path(config["folder"]), rank, int(config["ranks"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["torchrun", "ray-train"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("ranks", type=int)
    asked = parser.parse_args()
    if asked.peer == "torchrun":
        torchrun(asked.folder)
    else:
        ray_train(asked.folder, asked.ranks)
