"""Our model trained by torch's own DDP, FSDP2 and DTensor: what Remesh's losses are held against.

Run as a script: `torch_peers.py RANKS SEQUENCES STEPS` prints the losses of each rank as JSON. The
ranks are processes of their own, since torch's wrappers keep groups alive.
"""

import json
import multiprocessing
import sys
import tempfile

import numpy as np
import torch
from small_engine import EVEN_MODEL, filler, spec
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from remesh.parallel.model.maths import Linear
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.optim.lr import lr_at


class OfTorchsModules(nn.Module):
    """The model with torch's linear and embedding modules, which torch's plans ask for."""

    def __init__(self, model):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(model.embedding.weight, freeze=False)
        self.layers, self.norm, self.head = model.layers, model.norm, model.head
        for name, module in list(self.named_modules()):
            if isinstance(module, Linear):
                linear = nn.Linear(*reversed(module.weight.shape), bias=False, device="meta")
                linear.weight, linear.joined = module.weight, None
                self.set_submodule(name, linear)

    def forward(self, tokens_BT):
        x_BTC = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        return self.head(self.norm(x_BTC))


def fsdp2(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def dtensor(model, mesh):
    columns, rows = ColwiseParallel(), RowwiseParallel()
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
        "layers.*.attention.query": columns,
        "layers.*.attention.key": columns,
        "layers.*.attention.value": columns,
        "layers.*.attention.output": rows,
        "layers.*.ffn.gate": columns,
        "layers.*.ffn.up": columns,
        "layers.*.ffn.down": rows,
    }
    return parallelize_module(OfTorchsModules(model), mesh, plan)


def ddp(model, _):
    return DistributedDataParallel(model)


WRAPS = {"ddp": (ddp, True), "fsdp2": (fsdp2, True), "dtensor": (dtensor, False)}


def losses(name, rank, size, batch_size, num_steps):
    """Mean over the whole batch, before each of the steps, in fp64 and without clipping."""
    wrap, shares_batch = WRAPS[name]
    whole = Transformer(EVEN_MODEL).double()
    whole.reset(7)
    model = wrap(whole, init_device_mesh("cpu", (size,)))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    seen = []
    for step in range(1, num_steps + 1):
        batch = np.empty((batch_size, EVEN_MODEL.seq_len + 1), dtype=np.uint16)
        filler(step)(0, batch)
        tokens = torch.from_numpy(batch.astype(np.int64))
        if shares_batch:
            tokens = tokens.tensor_split(size)[rank]
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = lr_at(spec().lr, step)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        seen.append(mean.item() / size)
    return seen


def work(rank, size, path, answers, how_long):
    torch.set_num_threads(1)
    store = dist.FileStore(path, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    answer = {name: losses(name, rank, size, *how_long) for name in WRAPS}
    dist.destroy_process_group()
    answers.put(answer)


def main(size, *how_long):
    context = multiprocessing.get_context("fork")  # no thread runs yet, and torch is loaded
    answers = context.SimpleQueue()
    with tempfile.NamedTemporaryFile() as file:
        processes = [
            context.Process(
                target=work, args=(rank, size, file.name, answers, how_long), daemon=True
            )
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        outcomes = [answers.get() for _ in processes]
        for process in processes:
            process.join()
    print(json.dumps(outcomes))  # noqa: T201 - what it is for


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
