"""The seams of the model: the few maps that a rank may carry out in shares, or in two halves.

The transformer hands all that has parameters, and its loss, to a `Maths`, and knows nothing of
ranks. `Whole` is the one for a rank that holds everything; tensor.py brings the one for shares,
context.py the one for some of the tokens, halved.py the one whose backward computes weights apart
from inputs. Swapping modules after the model is built was the alternative: then a map that several
layers of code agree on (one gather for query, key and value) has no place to stand.

Experts are such maps too: tokens come to them and return through the seam, so that they may be on
other ranks.

Shapes: B sequences, T positions, C width, F the width that is cut into shares, V this rank's share
of the vocabulary, H query heads, D head width, E experts, K kv heads or experts of a token, M rows
of tokens, sorted by expert.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from remesh.parallel.model.attention_core import attended
from remesh.parallel.model.dispatch import Dispatched, combine, dispatch
from remesh.parallel.model.expert_maps import Stack, products
from remesh.parallel.model.linear import Linear, as_one, parted
from remesh.parallel.model.norms import NormModule
from remesh.parallel.numerics.losses import Losses, summed_cross_entropy
from remesh.parallel.plan.model_config import ModelConfig

__all__ = ["Around", "Linear", "Losses", "Maths", "Whole"]


class Maths(Protocol):
    """Ranks that share the maps call the same ones in the same order."""

    def columns(self, x_BTC: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        """Several maps of one input, whose outputs may each be this rank's share of F."""
        ...

    def row(self, x_BTF: Tensor, linear: Linear) -> Tensor:
        """A map back from (this rank's share of) F to C."""
        ...

    def outer(self, x_BTC: Tensor, linear: Linear) -> Tensor:
        """A small map of what lies outside of shares, which is whole on each rank."""
        ...

    def dispatch(self, x_BTC: Tensor, chosen_BTK: Tensor, config: ModelConfig) -> Dispatched:
        """What comes to the experts of this rank."""
        ...

    def products(self, x_MC: Tensor, counts: Sequence[int], *stacks: Stack) -> tuple[Tensor, ...]:
        """Several maps of one input for each expert, of `counts` rows each."""
        ...

    def combine(self, rows_MC: Tensor, weights_BTK: Tensor, sent: Dispatched) -> Tensor:
        """What experts say of the tokens that were dispatched, weighed, where these came from."""
        ...

    def over_sequence(self, counts_BE: Tensor) -> Tensor:
        """Whole numbers of this rank's positions of sequences, added up over all of theirs."""
        ...

    def embed(self, tokens_BT: Tensor, weight_VC: Tensor, positions_TC: Tensor | None) -> Tensor:
        """From whole rows; positions of a row each come as BTC."""
        ...

    def placed(self, table_TD: Tensor, num_tokens: int) -> Tensor:
        """Of a table of all positions, those of the `num_tokens` that this rank attends with."""
        ...

    def attend(
        self, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, segments_BT: Tensor | None
    ) -> Tensor:
        """Causal attention; with the segments of whole rows, within these only."""
        ...

    def normed(self, x_BTC: Tensor, norm: NormModule) -> Tensor:
        """What lies outside of shares, normed."""
        ...

    def inner(self, weight_D: nn.Parameter) -> Tensor:
        """A small weight of a map that is no map of its own, as that of a norm of heads."""
        ...

    def loss(self, logits_BTV: Tensor, targets_BT: Tensor, z_loss: float) -> Losses:
        """From what `columns` gives for the head."""
        ...


class Whole:
    """Every map in full on this rank."""

    def columns(self, x_BTC: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        return parted([linear(x_BTC) for linear in as_one(linears)], linears)

    def row(self, x_BTF: Tensor, linear: Linear) -> Tensor:
        out_BTC: Tensor = linear(x_BTF)
        return out_BTC

    def outer(self, x_BTC: Tensor, linear: Linear) -> Tensor:
        out_BTF: Tensor = linear(x_BTC)
        return out_BTF

    def dispatch(self, x_BTC: Tensor, chosen_BTK: Tensor, config: ModelConfig) -> Dispatched:
        return dispatch(x_BTC, chosen_BTK, config)

    def products(self, x_MC: Tensor, counts: Sequence[int], *stacks: Stack) -> tuple[Tensor, ...]:
        return products(x_MC, counts, *stacks)

    def combine(self, rows_MC: Tensor, weights_BTK: Tensor, sent: Dispatched) -> Tensor:
        return combine(rows_MC, weights_BTK, sent.places, sent.shape)

    def over_sequence(self, counts_BE: Tensor) -> Tensor:
        return counts_BE

    def embed(self, tokens_BT: Tensor, weight_VC: Tensor, positions_TC: Tensor | None) -> Tensor:
        x_BTC = functional.embedding(tokens_BT, weight_VC)
        if positions_TC is None:
            return x_BTC
        return x_BTC + positions_TC[..., : tokens_BT.shape[1], :]

    def placed(self, table_TD: Tensor, num_tokens: int) -> Tensor:
        return table_TD[:num_tokens]

    def attend(
        self, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, segments_BT: Tensor | None
    ) -> Tensor:
        return attended(q_BHTD, k_BKTD, v_BKTD, segments_BT)

    def normed(self, x_BTC: Tensor, norm: NormModule) -> Tensor:
        out_BTC: Tensor = norm(x_BTC)
        return out_BTC

    def inner(self, weight_D: nn.Parameter) -> Tensor:
        return weight_D

    def loss(self, logits_BTV: Tensor, targets_BT: Tensor, z_loss: float) -> Losses:
        return summed_cross_entropy(logits_BTV, targets_BT, z_loss=z_loss)


class Around:
    """All maps as `maths` has them: what shares some of them out has only those to say itself."""

    def __init__(self, maths: Maths) -> None:
        self._maths = maths

    def columns(self, x_BTC: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        return self._maths.columns(x_BTC, *linears)

    def row(self, x_BTF: Tensor, linear: Linear) -> Tensor:
        return self._maths.row(x_BTF, linear)

    def outer(self, x_BTC: Tensor, linear: Linear) -> Tensor:
        return self._maths.outer(x_BTC, linear)

    def dispatch(self, x_BTC: Tensor, chosen_BTK: Tensor, config: ModelConfig) -> Dispatched:
        return self._maths.dispatch(x_BTC, chosen_BTK, config)

    def products(self, x_MC: Tensor, counts: Sequence[int], *stacks: Stack) -> tuple[Tensor, ...]:
        return self._maths.products(x_MC, counts, *stacks)

    def combine(self, rows_MC: Tensor, weights_BTK: Tensor, sent: Dispatched) -> Tensor:
        return self._maths.combine(rows_MC, weights_BTK, sent)

    def over_sequence(self, counts_BE: Tensor) -> Tensor:
        return self._maths.over_sequence(counts_BE)

    def embed(self, tokens_BT: Tensor, weight_VC: Tensor, positions_TC: Tensor | None) -> Tensor:
        return self._maths.embed(tokens_BT, weight_VC, positions_TC)

    def placed(self, table_TD: Tensor, num_tokens: int) -> Tensor:
        return self._maths.placed(table_TD, num_tokens)

    def attend(
        self, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, segments_BT: Tensor | None
    ) -> Tensor:
        return self._maths.attend(q_BHTD, k_BKTD, v_BKTD, segments_BT)

    def normed(self, x_BTC: Tensor, norm: NormModule) -> Tensor:
        return self._maths.normed(x_BTC, norm)

    def inner(self, weight_D: nn.Parameter) -> Tensor:
        return self._maths.inner(weight_D)

    def loss(self, logits_BTV: Tensor, targets_BT: Tensor, z_loss: float) -> Losses:
        return self._maths.loss(logits_BTV, targets_BT, z_loss)
