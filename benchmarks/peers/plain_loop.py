"""A transformer and its training loop as one writes them by hand for one process.

The same model as Remesh's, with one product for queries, keys and values and one for gate and up,
plain autograd, torch's fused AdamW and its clipping: no seam, no bucket, no schedule.

Shapes: B sequences, T positions, C width, H heads, D head width, V vocabulary, N = B * T tokens.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.plan.model_config import ModelConfig


class PlainLayer(nn.Module):
    """Attention and a gated net, each behind a norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads = config.num_heads
        self.attention_norm = nn.RMSNorm(width, config.norm_eps)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, config.norm_eps)
        self.gate_up = nn.Linear(width, 2 * config.ffn_width, bias=False)
        self.down = nn.Linear(config.ffn_width, width, bias=False)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        num_rows, num_tokens, width = x_BTC.shape
        heads = self.query_key_value(self.attention_norm(x_BTC))
        heads = heads.view(num_rows, num_tokens, 3, self.num_heads, -1).transpose(1, 3)
        q_BHTD, k_BHTD, v_BHTD = heads.unbind(2)
        q_BHTD, k_BHTD = turned(q_BHTD, cos_TD, sin_TD), turned(k_BHTD, cos_TD, sin_TD)
        a_BHTD = functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        x_BTC = x_BTC + self.output(a_BHTD.transpose(1, 2).reshape(num_rows, num_tokens, width))
        gate_BTF, up_BTF = self.gate_up(self.ffn_norm(x_BTC)).chunk(2, -1)
        return x_BTC + self.down(functional.silu(gate_BTF) * up_BTF)


class PlainModel(nn.Module):
    """Gives logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(PlainLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        half = config.head_width // 2
        rates_D = config.rope_theta ** (-torch.arange(half) / half)
        angles_TD = torch.outer(torch.arange(config.seq_len), rates_D).repeat(1, 2)
        self.register_buffer("cos_TD", angles_TD.cos())
        self.register_buffer("sin_TD", angles_TD.sin())

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC, self.cos_TD, self.sin_TD)
        return self.head(self.norm(x_BTC))


class PlainLoop:
    """One model, trained a step at a time, of one microbatch or several."""

    def __init__(self, config: ModelConfig, adamw: AdamW, *, lr: float, clip: float) -> None:
        torch.manual_seed(0)
        self.model = PlainModel(config)
        self._clip = clip
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=lr,
            betas=(adamw.beta1, adamw.beta2),
            eps=adamw.eps,
            weight_decay=adamw.weight_decay,
            fused=True,
        )

    def step(self, microbatches: list[Tensor]) -> float:
        self._optimizer.zero_grad()
        total = 0.0
        for tokens_BT in microbatches:
            logits_NV = self.model(tokens_BT[:, :-1]).flatten(0, 1)
            loss = functional.cross_entropy(logits_NV, tokens_BT[:, 1:].flatten())
            (loss / len(microbatches)).backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), self._clip, foreach=True)
        self._optimizer.step()
        return total / len(microbatches)


def turned(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    low, high = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cos_TD + torch.cat((-high, low), dim=-1) * sin_TD
