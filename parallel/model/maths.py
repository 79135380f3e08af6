"""The seams of the model: the few maps that a rank may carry out in shares instead of whole.

The transformer hands its linear maps, its embedding and its loss to a `Maths`, and knows nothing of
ranks. `Whole` is the one for a rank that holds everything; tensor.py brings the one for shares.
Swapping modules after the model is built was the alternative: then a map that several layers of
code agree on (one gather for query, key and value) has no place to stand.

Shapes: B sequences, T positions, C width, F the width that is cut into shares, V vocabulary.
"""

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from remesh.parallel.model.linear import Linear
from remesh.parallel.numerics.losses import Losses, summed_cross_entropy

__all__ = ["Linear", "Losses", "Maths", "Whole"]


class Maths(Protocol):
    """Ranks that share the maps call the same ones in the same order."""

    def columns(self, x_BTC: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        """Several maps of one input, whose outputs may each be this rank's share of F."""
        ...

    def row(self, x_BTF: Tensor, linear: Linear) -> Tensor:
        """A map back from (this rank's share of) F to C."""
        ...

    def embed(
        self, tokens_BT: Tensor, weight_VC: Tensor, positions_TC: Tensor | None
    ) -> Tensor: ...

    def loss(self, x_BTC: Tensor, head: Linear, targets_BT: Tensor, z_loss: float) -> Losses: ...


class Whole:
    """Every map in full on this rank."""

    def columns(self, x_BTC: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        return tuple(linear(x_BTC) for linear in linears)

    def row(self, x_BTF: Tensor, linear: Linear) -> Tensor:
        out_BTC: Tensor = linear(x_BTF)
        return out_BTC

    def embed(self, tokens_BT: Tensor, weight_VC: Tensor, positions_TC: Tensor | None) -> Tensor:
        x_BTC = functional.embedding(tokens_BT, weight_VC)
        return x_BTC if positions_TC is None else x_BTC + positions_TC[: tokens_BT.shape[1]]

    def loss(self, x_BTC: Tensor, head: Linear, targets_BT: Tensor, z_loss: float) -> Losses:
        return summed_cross_entropy(head(x_BTC), targets_BT, z_loss=z_loss)
