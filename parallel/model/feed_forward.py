"""The dense feed-forward net.

Shapes: B sequences, T positions, C width, F ffn width.
"""

from torch import Tensor, nn
from torch.nn import functional

from remesh.parallel.model.maths import Linear, Maths
from remesh.parallel.plan.model_config import ModelConfig


class FeedForward(nn.Module):
    """SwiGLU, or GELU in its exact form.

    Source: Shazeer 2020 (arXiv:2002.05202); Hendrycks and Gimpel 2016 (arXiv:1606.08415).
    """

    def __init__(self, config: ModelConfig, ffn_width: int, maths: Maths) -> None:
        super().__init__()
        width, bias = config.width, config.bias
        gated = config.activation == "swiglu"
        self.together = ("gate", "up") if gated else ()  # maps of one input
        self.gate = Linear(width, ffn_width, bias=bias) if gated else None
        self.up = Linear(width, ffn_width, bias=bias)
        self.down = Linear(ffn_width, width, bias=bias)
        self.maths = maths

    def forward(self, x_BTC: Tensor) -> Tensor:
        if self.gate is None:
            (up_BTF,) = self.maths.columns(x_BTC, self.up)
            h_BTF = functional.gelu(up_BTF)
        else:
            gate_BTF, up_BTF = self.maths.columns(x_BTC, self.gate, self.up)
            h_BTF = functional.silu(gate_BTF) * up_BTF
        return self.maths.row(h_BTF, self.down)
