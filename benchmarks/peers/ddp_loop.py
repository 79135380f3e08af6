"""A rank of a training loop written by hand around DDP, for torchrun: what `whole_run.py` compares.

    torchrun --standalone --nproc-per-node=2 benchmarks/peers/ddp_loop.py recipe.json

The model of `plain_loop.py`, rows of a memory map in a shuffled order, gradients of a rank's
microbatches added up before they are reduced, torch's clipping and fused AdamW, and a line of JSON
a step with the mean loss of all ranks. At the end the first rank saves the state.
"""

import json
import math
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain_loop import PlainModel
from torch import distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from remesh.parallel.plan.model_config import ModelConfig


def main(recipe: dict[str, Any], folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        PlainModel(ModelConfig(**recipe["model"])),
        bucket_cap_mb=recipe["bucket_mb"],
        gradient_as_bucket_view=True,
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe["lr"], betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    rows = np.load(recipe["rows"], mmap_mode="r")
    order = np.random.default_rng(0).permutation(len(rows))
    batch, microbatch = recipe["global_batch"], recipe["microbatch"]
    log = (folder / "log.jsonl").open("a", buffering=1) if rank == 0 else None
    for step in range(1, recipe["steps"] + 1):
        lr = recipe["lr"] * min(1.0, step / recipe["warmup_steps"])
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        total = torch.zeros(())
        own = order[(step - 1) * batch % (len(rows) - batch) :][:batch][rank::ranks]
        places = np.split(own, math.ceil(len(own) / microbatch))
        for number, place in enumerate(places):
            tokens_BT = torch.from_numpy(rows[place].astype(np.int64))
            is_last = number == len(places) - 1
            with nullcontext() if is_last else model.no_sync():
                logits_NV = model(tokens_BT[:, :-1]).flatten(0, 1)
                loss = functional.cross_entropy(logits_NV, tokens_BT[:, 1:].flatten())
                (loss / len(places)).backward()
            total += loss.detach() / len(places)
        norm = nn.utils.clip_grad_norm_(model.parameters(), recipe["clip"], foreach=True)
        optimizer.step()
        dist.all_reduce(total)
        if log:
            told = {"step": step, "loss": total.item() / ranks, "norm": norm.item(), "lr": lr}
            log.write(json.dumps({**told, "ended_s": time.time()}) + "\n")
    if rank == 0:
        states = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(states, folder / "state.pt")
        with (folder / "state.pt").open("rb") as file:
            os.fsync(file)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    main(json.loads(path.read_text()), path.parent)
