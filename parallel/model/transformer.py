"""A decoder-only transformer without parallel code: what is cut into shares goes through `Maths`.

It can be run whole (`forward`) or block by block (`blocks`), which lets whoever runs it fetch, free
and recompute blocks in between.

Shapes: B sequences, T positions, C width, V vocabulary, L layers with experts, E experts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from remesh.parallel.model.attention import Attention, Rotary
from remesh.parallel.model.attention_core import positions_in_segments
from remesh.parallel.model.experts import ExpertFeedForward
from remesh.parallel.model.feed_forward import FeedForward
from remesh.parallel.model.initial import initial_value
from remesh.parallel.model.maths import Linear, Losses, Maths, Whole
from remesh.parallel.model.model_blocks import ModelBlock
from remesh.parallel.model.norms import residual_norm
from remesh.parallel.model.recompute import Recompute
from remesh.parallel.model.router import RouterRates
from remesh.parallel.plan.model_config import ModelConfig

_WHOLE = Whole()
_NOTHING = Recompute()
_NO_LOSSES = RouterRates()


class Transformer(nn.Module):
    """Predicts the next token at each position. Parameters hold no values before `reset`."""

    def __init__(
        self,
        config: ModelConfig,
        maths: Maths = _WHOLE,
        *,
        z_loss: float = 0.0,
        recompute: Recompute = _NOTHING,
        router: RouterRates = _NO_LOSSES,
    ) -> None:
        super().__init__()
        self.rotary = Rotary(config) if config.positions == "rope" else None
        layers = nn.ModuleList(
            Layer(config, maths, self.rotary, _feed_forward(config, number, maths, router))
            for number in range(config.num_layers)
        )
        self.config = config
        self.maths = maths
        self.z_loss = z_loss
        self.recompute = recompute
        self.embedding = Table(config.vocab_size, config.width)
        self.positions = (
            Table(config.seq_len, config.width) if config.positions == "learned" else None
        )
        self.layers = cast("Sequence[Layer]", layers)
        for number, layer in enumerate(self.layers):
            layer.attention.recompute = recompute.applies("attention", number)
        self.norm = residual_norm(config)
        self.head = Linear(config.width, config.vocab_size)
        if config.tied:
            self.head.weight = self.embedding.weight

    @property
    def blocks(self) -> tuple[ModelBlock, ...]:
        """As `block_parameters` lists their parameters: embedding, layers, head."""
        layers = (
            ModelBlock(
                compute=_without_targets(layer), recomputed=self.recompute.applies("full", number)
            )
            for number, layer in enumerate(self.layers)
        )
        embedding = ModelBlock(compute=_without_targets(self.embed), reads_weights=False)
        return (embedding, *layers, ModelBlock(compute=self._losses))

    def embed(self, tokens_BT: Tensor, segments_BT: Tensor | None = None) -> Tensor:
        """Positions that are learned begin anew in each segment; all others are distances."""
        positions_TC: Tensor | None = None if self.positions is None else self.positions.weight
        if positions_TC is not None and segments_BT is not None:
            positions_TC = functional.embedding(positions_in_segments(segments_BT), positions_TC)
        return self.maths.embed(tokens_BT, self.embedding.weight, positions_TC)

    def loss(self, x_BTC: Tensor, targets_BT: Tensor) -> Losses:
        """From the output of the last layer."""
        [logits_BTV] = self.maths.columns(self.maths.normed(x_BTC, self.norm), self.head)
        return self.maths.loss(logits_BTV, targets_BT, self.z_loss)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """The logits, where the model is whole."""
        x_BTC = self.embed(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        logits_BTV: Tensor = self.head(self.norm(x_BTC))
        return logits_BTV

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Puts every parameter to its value at step 0, in place, where the model is whole."""
        for name, parameter in self.named_parameters():
            parameter.copy_(initial_value(self.config, seed, name, tuple(parameter.shape)))

    def install(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Puts these in the place of the model's own, each of any shape and type.

        A tied model whose `head.weight` is among them has two parameters from then on, which
        gather their gradients apart; otherwise its embedding is installed as its head too.
        """
        if self.config.tied and "embedding.weight" in parameters:
            self.head.weight = parameters["embedding.weight"]
        for name, parameter in parameters.items():
            module, _, own = name.rpartition(".")
            assert isinstance(self.get_parameter(name), nn.Parameter)
            user = self.get_submodule(module)
            setattr(user, own, parameter)
            if isinstance(user, Linear):
                user.settle()

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """The names of maps that are always computed of one input, as they follow one another."""
        return tuple(
            tuple(f"{name}.{own}" for own in module.together)
            for name, module in self.named_modules()
            if isinstance(module, Attention | FeedForward) and module.together
        )

    def join(self, maps: Sequence[str], linear: Linear) -> None:
        """Has these maps computed as one."""
        first = self.get_submodule(maps[0])
        assert isinstance(first, Linear)
        first.joined = (linear,)

    def move_tables(self, device: torch.device) -> None:
        """Puts what is no parameter, and drawn from nothing, where the model computes."""
        if self.rotary is not None:
            self.rotary.to(device)

    def count_loads(self, tally_LE: Tensor) -> None:
        """Has backward add to `tally_LE` how often each expert of each layer was chosen."""
        nets = [layer.ffn for layer in self.layers if isinstance(layer.ffn, ExpertFeedForward)]
        for net, tally_E in zip(nets, tally_LE, strict=True):
            net.tally = tally_E

    def _losses(self, x_BTC: Tensor, targets_BT: Tensor | None) -> Losses:
        assert targets_BT is not None
        return self.loss(x_BTC, targets_BT)


class Layer(nn.Module):
    """Attention, then feed-forward, each behind a norm and added to the residual stream."""

    def __init__(
        self,
        config: ModelConfig,
        maths: Maths,
        rotary: Rotary | None,
        ffn: FeedForward | ExpertFeedForward,
    ) -> None:
        super().__init__()
        self.attention_norm = residual_norm(config)
        self.attention = Attention(config, maths, rotary)
        self.ffn_norm = residual_norm(config)
        self.ffn = ffn
        self.maths = maths

    def forward(self, x_BTC: Tensor, segments_BT: Tensor | None = None) -> Tensor:
        """Tokens see each other within a segment of their row, if there are segments."""
        normed_BTC = self.maths.normed(x_BTC, self.attention_norm)
        x_BTC = x_BTC + self.attention(normed_BTC, segments_BT)
        out_BTC: Tensor = x_BTC + self.ffn(self.maths.normed(x_BTC, self.ffn_norm))
        return out_BTC


class Table(nn.Module):
    """Rows to look up."""

    def __init__(self, num_rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, width))


def _feed_forward(
    config: ModelConfig, layer: int, maths: Maths, rates: RouterRates
) -> FeedForward | ExpertFeedForward:
    if config.has_experts(layer):
        return ExpertFeedForward(config, maths, rates)
    return FeedForward(config, config.ffn_width, maths)


def _without_targets(
    compute: Callable[[Tensor], Tensor],
) -> Callable[[Tensor, Tensor | None], Tensor]:
    return lambda x, _: compute(x)
