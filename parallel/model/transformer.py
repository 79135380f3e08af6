"""A decoder-only transformer (RMSNorm, RoPE, GQA, SwiGLU, untied head) without parallel code.

Shapes: B sequences, T positions, C width, H query heads, K kv heads, D head width, F ffn width,
V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from remesh.parallel.model.config import ModelConfig
from remesh.parallel.model.initial import initial_value


class Transformer(nn.Module):
    """Logits for the next token at each position. Parameters hold no values before `reset`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config)
        self.head = Linear(config.width, config.vocab_size)
        cos_TD, sin_TD = rotary_tables(config)
        self.register_buffer("cos_TD", cos_TD, persistent=False)
        self.register_buffer("sin_TD", sin_TD, persistent=False)

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Puts every parameter to its value at step 0, in place."""
        for name, parameter in self.named_parameters():
            parameter.copy_(initial_value(self.config, seed, name, tuple(parameter.shape)))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        num_positions = tokens_BT.shape[1]
        cos_TD = self.get_buffer("cos_TD")[:num_positions]
        sin_TD = self.get_buffer("sin_TD")[:num_positions]
        x_BTC: Tensor = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC, cos_TD, sin_TD)
        logits_BTV: Tensor = self.head(self.norm(x_BTC))
        return logits_BTV


class Layer(nn.Module):
    """Attention, then feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config)
        self.ffn = FeedForward(config)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), cos_TD, sin_TD)
        out_BTC: Tensor = x_BTC + self.ffn(self.ffn_norm(x_BTC))
        return out_BTC


class Attention(nn.Module):
    """Causal attention in which H / K query heads share a kv head.

    Source: Ainslie et al. 2023 (arXiv:2305.13245).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.grouped = config.num_kv_heads != config.num_heads
        self.query = Linear(config.width, config.width)
        self.key = Linear(config.width, config.kv_width)
        self.value = Linear(config.width, config.kv_width)
        self.output = Linear(config.width, config.width)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        q_BHTD = rotate(self._heads(self.query(x_BTC)), cos_TD, sin_TD)
        k_BKTD = rotate(self._heads(self.key(x_BTC)), cos_TD, sin_TD)
        v_BKTD = self._heads(self.value(x_BTC))
        a_BHTD = functional.scaled_dot_product_attention(
            q_BHTD, k_BKTD, v_BKTD, is_causal=True, enable_gqa=self.grouped
        )
        out_BTC: Tensor = self.output(a_BHTD.transpose(1, 2).flatten(2))
        return out_BTC

    def _heads(self, x_BTC: Tensor) -> Tensor:
        num_sequences, num_positions, _ = x_BTC.shape
        return x_BTC.view(num_sequences, num_positions, -1, self.head_width).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU. Source: Shazeer 2020 (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Linear(config.width, config.ffn_width)
        self.up = Linear(config.width, config.ffn_width)
        self.down = Linear(config.ffn_width, config.width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        h_BTF = functional.silu(self.gate(x_BTC)) * self.up(x_BTC)
        out_BTC: Tensor = self.down(h_BTF)
        return out_BTC


class RMSNorm(nn.Module):
    """Source: Zhang and Sennrich 2019 (arXiv:1910.07467)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.width))
        self.eps = config.norm_eps

    def forward(self, x_BTC: Tensor) -> Tensor:
        return functional.rms_norm(x_BTC, (x_BTC.shape[-1],), self.weight, self.eps)


class Linear(nn.Module):
    """A projection without bias; torch's own would draw values that `reset` draws again."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_out, num_in))

    def forward(self, x_BTC: Tensor) -> Tensor:
        return functional.linear(x_BTC, self.weight)


class Embedding(nn.Module):
    def __init__(self, num_rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, width))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return functional.embedding(tokens_BT, self.weight)


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, (T, D), computed in fp64 and rounded once.

    Source: Su et al. 2021 (arXiv:2104.09864); channels i and i + D/2 form a pair.
    """
    half = config.head_width // 2
    rates_D = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles_TD = torch.outer(torch.arange(config.seq_len, dtype=torch.float64), rates_D).repeat(1, 2)
    return angles_TD.cos().float(), angles_TD.sin().float()


def rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Each pair of channels turned by its position's angle."""
    low, high = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cos_TD + torch.cat((-high, low), dim=-1) * sin_TD
