"""torch's own ways to train our model on several ranks: DDP, FSDP2 and DTensor, each at its best.

They run the same layers and kernels as Remesh. Settings that only cost or save time are tried one
after the other and the fastest are kept: the peer is what its most careful user would get.
"""

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.group import Group
from remesh.parallel.model.maths import Linear
from remesh.parallel.model.transformer import Transformer
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.plan.model_config import ModelConfig

Settings = Mapping[str, int | bool]
TRIALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What all contestants train, and how."""

    model: ModelConfig
    adamw: AdamW
    lr: float
    clip: float
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """`wrap(model, **settings)` is the model that a training loop sees.

    `choices` are the values of each setting; `fused`, which is the optimizer's, comes on top.
    """

    name: str
    wrap: Callable[..., nn.Module]
    choices: Mapping[str, tuple[int | bool, ...]]


def tuned(peer: Peer, recipe: Recipe, group: Group, tokens: Tensor) -> tuple["Trainer", Settings]:
    """The peer with the settings that are fastest here, found one setting at a time."""
    choices = {**peer.choices, "fused": (True, False)}
    best = {name: values[0] for name, values in choices.items()}
    best_s = _trial_s(peer, recipe, group, tokens, best)
    for name, values in choices.items():
        for value in values[1:]:
            settings = {**best, name: value}
            trial_s = _trial_s(peer, recipe, group, tokens, settings)
            if trial_s < best_s:
                best, best_s = settings, trial_s
    return Trainer(peer, recipe, best), best


def _trial_s(peer: Peer, recipe: Recipe, group: Group, tokens: Tensor, settings: Settings) -> float:
    """The fastest of a few steps, on the rank where it takes longest."""
    trainer = Trainer(peer, recipe, settings)
    times = []
    for _ in range(TRIALS):
        all_reduce_(group, torch.ones(1))
        start = time.perf_counter()
        trainer.step(tokens)
        times.append(time.perf_counter() - start)
    slowest = torch.tensor(min(times[1:]))
    all_reduce_(group, slowest, "max")
    del trainer
    gc.collect()
    return float(slowest)


class Trainer:
    """The usual training loop."""

    def __init__(self, peer: Peer, recipe: Recipe, settings: Settings) -> None:
        model = Transformer(recipe.model)
        model.reset(recipe.seed)
        fused = settings["fused"]
        adamw = recipe.adamw
        self._clip = recipe.clip
        self._loss_context = loss_parallel if settings.get("loss_parallel") else nullcontext
        self._model = peer.wrap(model, **{k: v for k, v in settings.items() if k != "fused"})
        self._optimizer = torch.optim.AdamW(
            [{"params": kind} for kind in kinds_of(self._model.parameters())],
            lr=recipe.lr,
            betas=(adamw.beta1, adamw.beta2),
            eps=adamw.eps,
            weight_decay=adamw.weight_decay,
            fused=fused,
            foreach=not fused,
        )

    def step(self, tokens_BT: Tensor) -> None:
        self._optimizer.zero_grad()
        with self._loss_context():
            logits_NV = self._model(tokens_BT[:, :-1]).flatten(0, 1)
            functional.cross_entropy(logits_NV, tokens_BT[:, 1:].flatten()).backward()
        clip(self._model.parameters(), self._clip)
        self._optimizer.step()


def clip(parameters: Iterable[nn.Parameter], limit: float) -> None:
    """clip_grad_norm_, also for distributed and plain parameters of one model."""
    kinds = kinds_of(parameters)
    norms = [get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    norm = get_total_norm(whole) if whole[1:] else whole[0]
    for kind in kinds:
        clip_grads_with_norm_(kind, limit, norm)


def kinds_of(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Distributed parameters and plain ones, which torch does not take in one call."""
    parameters = list(parameters)
    kinds = [[p for p in parameters if isinstance(p, DTensor) == kind] for kind in (True, False)]
    return [kind for kind in kinds if kind]


def ddp(model: Transformer, *, bucket_mb: int, static_graph: bool) -> nn.Module:
    return DistributedDataParallel(
        model, bucket_cap_mb=bucket_mb, static_graph=static_graph, gradient_as_bucket_view=True
    )


def fsdp2(model: Transformer, *, layers: int) -> nn.Module:
    """Every `layers` layers share a bucket, what is left is the root's."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for first in range(0, len(model.layers), layers):
        fully_shard(list(model.layers[first : first + layers]), mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(model: Transformer, *, loss_parallel: bool) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    logits = Shard(-1) if loss_parallel else Replicate()
    columns, rows = ColwiseParallel(), RowwiseParallel()
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=logits, use_local_output=not loss_parallel),
        "layers.*.attention.query": columns,
        "layers.*.attention.key": columns,
        "layers.*.attention.value": columns,
        "layers.*.attention.output": rows,
        "layers.*.ffn.gate": columns,
        "layers.*.ffn.up": columns,
        "layers.*.ffn.down": rows,
    }
    return parallelize_module(_OfTorchsModules(model), mesh, plan)


class _OfTorchsModules(nn.Module):
    """The model with torch's linear and embedding modules, the only ones that its plans take."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(model.embedding.weight, freeze=False)
        self.layers, self.norm, self.head = model.layers, model.norm, model.head
        for name, module in list(self.named_modules()):
            if isinstance(module, Linear):
                self.set_submodule(name, _torchs_linear(module.weight))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        return self.head(self.norm(x_BTC))


def _torchs_linear(weight: nn.Parameter) -> nn.Linear:
    num_out, num_in = weight.shape
    linear = nn.Linear(num_in, num_out, bias=False, device="meta")
    linear.weight = weight
    linear.joined = None
    return linear


PEERS = {
    "ddp": Peer(
        name="torch DDP",
        wrap=ddp,
        choices={"bucket_mb": (25, 5, 1), "static_graph": (False, True)},
    ),
    "fsdp2": Peer(name="FSDP2", wrap=fsdp2, choices={"layers": (1, 2)}),
    "tensor": Peer(
        name="DTensor TP", wrap=tensor_parallel, choices={"loss_parallel": (True, False)}
    ),
}
