"""torch.distributed.pipelining as its users write it: the same layers, cut at the same borders."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    _PipelineSchedule,
)
from torch.nn import functional
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from remesh.parallel.model.transformer import Transformer
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.plan.pipeline import Pipeline

# ZB-H1 is what torch calls interleaved zero bubble with one stage a rank: ZB1P.
SCHEDULES: Mapping[str, type[_PipelineSchedule]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb-h1": ScheduleInterleavedZeroBubble,
    "dualpipe-v": ScheduleDualPipeV,
}
SINGLE = ("gpipe", "1f1b")  # these take a stage, the others a list


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePart:
    """One rank's share of a training: what it computes and how it updates."""

    model: Transformer
    pipeline: Pipeline
    adamw: AdamW
    lr: float
    clip: float


class TorchPipeline:
    """Steps of one rank: all microbatches forward and backward, norm over all ranks, AdamW.

    `loss` is that of the last step, NaN on a rank without the last stage.
    """

    def __init__(self, name: str, part: PipelinePart, num_microbatches: int) -> None:
        config, rank = part.model.config, dist.get_rank()
        spans = part.pipeline.spans(config.num_layers)
        own = part.pipeline.stages_of(rank)
        stages = [
            PipelineStage(_Blocks(part.model, spans[stage]), stage, len(spans), torch.device("cpu"))
            for stage in own
        ]
        schedule = SCHEDULES[name]
        self._schedule = schedule(  # type: ignore[call-arg]
            stages[0] if name in SINGLE else stages, n_microbatches=num_microbatches, loss_fn=_loss
        )
        self._is_first, self._is_last = 0 in own, len(spans) - 1 in own
        self._parameters = [p for stage in stages for p in stage.submod.parameters()]
        self._clip = part.clip
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=part.lr,
            betas=(part.adamw.beta1, part.adamw.beta2),
            eps=part.adamw.eps,
            weight_decay=part.adamw.weight_decay,
            fused=True,
        )
        self.loss = float("nan")

    def step(self, tokens_BT: Tensor) -> None:
        self._optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = (tokens_BT[:, :-1],) if self._is_first else ()
        last = {"target": tokens_BT[:, 1:], "losses": losses} if self._is_last else {}
        self._schedule.step(*inputs, **last)
        square = get_total_norm([p.grad for p in self._parameters if p.grad is not None]).square()
        dist.all_reduce(square)
        clip_grads_with_norm_(self._parameters, self._clip, square.sqrt())
        self._optimizer.step()
        if losses:
            self.loss = torch.stack(losses).detach().mean().item()


class _Blocks(nn.Module):
    """Blocks of the model: 0 is the embedding, the last one norm and head."""

    def __init__(self, model: Transformer, span: range) -> None:
        super().__init__()
        num_layers = model.config.num_layers
        self.embedding = model.embedding if 0 in span else None
        layers = [model.layers[number - 1] for number in span if 1 <= number <= num_layers]
        self.layers = nn.ModuleList(cast("list[nn.Module]", layers))
        self.norm, self.head = (model.norm, model.head) if num_layers + 1 in span else (None, None)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = functional.embedding(x, self.embedding.weight)
        for layer in self.layers:
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def _loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
