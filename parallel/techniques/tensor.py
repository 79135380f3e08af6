"""Tensor and sequence parallelism: the maps of the model in shares, over the ranks of a group.

A region between two borders works on this rank's share of a width F: `columns` leads into it and
`row` out of it. The borders are each other's mirror, forward and backward. Without sequence
parallelism what lies outside is whole and equal on all ranks: leading in costs nothing, leading out
is an all-reduce. With it, each rank has a run of t = T / size positions outside: leading in is an
all-gather, leading out a reduce-scatter. Norms and residuals then work on 1/size of the positions,
and of what leads into a region only this rank's part is saved: the backward pass gathers it again,
while it computes the gradient of the input. (Saving it whole saves that message: `keep_gathered`.)

Every rank runs backward from its own copy of the objective, with the same gradient. What is whole
on all ranks then carries its full gradient, with the same bits everywhere.

Modules that exchange their parameters for distributed tensors were the alternative. They keep
groups alive in caches of their own, and pay for a dispatch in Python with each small operation.

Shapes: B sequences, T positions, t those of this rank, C width, F this rank's share of a width,
V this rank's rows of the vocabulary, N = B * T tokens, H this rank's query heads, D head width,
E experts, K this rank's kv heads or experts of a token, M rows of tokens, sorted by expert.
Source: Shoeybi et al. 2019 (arXiv:1909.08053), 3; Korthikanti et al. 2022 (arXiv:2205.05198), 4.2.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from remesh.parallel.groups.collectives import (
    all_reduce_,
    start_all_gather,
    start_all_reduce_,
    start_reduce_scatter,
)
from remesh.parallel.groups.group import Group
from remesh.parallel.model.dispatch import Dispatched, combine, dispatch
from remesh.parallel.model.linear import as_one, half_of, parted, weight_gradient
from remesh.parallel.model.maths import Around, Linear, Losses, Whole
from remesh.parallel.plan.errors import LayoutError
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.plan.shares import vocabulary_rows
from remesh.parallel.techniques import vocabulary


class TensorParallel(Around):
    """The `Maths` of a rank whose parameters are the shares of `tensor_shares`.

    What has neither columns nor rows to share is computed as by one rank, on what this one has: all
    T tokens of its own heads attend. Under `sequence` T must be a multiple of the ranks.
    `keep_gathered` saves the whole input of each `columns` under `sequence` and sends a fifth less
    in a step.
    """

    def __init__(
        self, group: Group, *, sequence: bool, vocab_size: int, keep_gathered: bool = False
    ) -> None:
        super().__init__(Whole())
        self._border = _Border(group, sequence=sequence, keep_gathered=keep_gathered)
        self._group = group
        self._rows = vocabulary_rows(vocab_size, group.size, group.rank)

    def columns(self, x_BTC: Tensor, *linears: Linear) -> tuple[Tensor, ...]:
        parameters = [p for linear in as_one(linears) for p in (linear.weight, linear.bias)]
        outs_BTF: tuple[Tensor, ...] = _Columns.apply(self._border, x_BTC, *parameters)  # type: ignore[no-untyped-call]
        return parted(outs_BTF, linears)

    def row(self, x_BTF: Tensor, linear: Linear) -> Tensor:
        parameters = linear.weight, linear.bias
        out_BTC: Tensor = _Row.apply(self._border, x_BTF, *parameters)  # type: ignore[no-untyped-call]
        return out_BTC

    def dispatch(self, x_BTC: Tensor, chosen_BTK: Tensor, config: ModelConfig) -> Dispatched:
        x_BTC = _Enter.apply(self._border, x_BTC)  # type: ignore[no-untyped-call]
        return dispatch(x_BTC, self._border.enter(chosen_BTK)(), config)

    def combine(self, rows_MC: Tensor, weights_BTK: Tensor, sent: Dispatched) -> Tensor:
        """Weights come in as activations do: the gradients of them are parts, as theirs are."""
        weights_BTK = _Enter.apply(self._border, weights_BTK)  # type: ignore[no-untyped-call]
        part_BTC = combine(rows_MC, weights_BTK, sent.places, sent.shape)
        out_BTC: Tensor = _Leave.apply(self._border, part_BTC)  # type: ignore[no-untyped-call]
        return out_BTC

    def over_sequence(self, counts_BE: Tensor) -> Tensor:
        return self._border.added_up(counts_BE)

    def embed(self, tokens_BT: Tensor, weight_VC: Tensor, positions_TC: Tensor | None) -> Tensor:
        """Raises: LayoutError if the positions cannot be dealt to the ranks."""
        own = self._border.positions(tokens_BT.shape[1])
        arguments = self._border, self._rows, tokens_BT, weight_VC
        x_BTC: Tensor = _Embed.apply(*arguments)  # type: ignore[no-untyped-call]
        return x_BTC if positions_TC is None else x_BTC + positions_TC[..., own, :]

    def loss(self, logits_BTV: Tensor, targets_BT: Tensor, z_loss: float) -> Losses:
        return vocabulary.cross_entropy_(self._group, logits_BTV, targets_BT, self._rows, z_loss)


class _Border:
    """Where whole activations, or runs of positions, meet shares of a width."""

    def __init__(self, group: Group, *, sequence: bool, keep_gathered: bool) -> None:
        self.group = group
        self.sequence = sequence
        self.regathers = sequence and not keep_gathered

    def positions(self, num_positions: int) -> slice:
        """The positions that this rank has outside of a region."""
        if not self.sequence:
            return slice(num_positions)
        size, rank = self.group.size, self.group.rank
        if num_positions % size:
            raise LayoutError(
                f"{num_positions} positions cannot be dealt to {size} ranks; use a multiple of "
                f"{size}, or no sequence parallelism"
            )
        length = num_positions // size
        return slice(rank * length, (rank + 1) * length)

    def enter(self, x_BtC: Tensor) -> Callable[[], Tensor]:
        """Starts to bring an activation in; the call returns it for all T positions."""
        if not self.sequence:
            return lambda: x_BtC
        shape, own = x_BtC.shape, x_BtC.flatten().contiguous()
        parts = own.new_empty(self.group.size * len(own))
        operation = start_all_gather(self.group, parts, own)

        def finish() -> Tensor:
            operation.wait()
            return parts.view(-1, *shape).transpose(0, 1).flatten(1, 2)

        return finish

    def leave(self, part_BTC: Tensor) -> Callable[[], Tensor]:
        """Starts to sum the ranks' parts, which it uses up; the call returns this rank's t."""
        if not self.sequence:
            reduction = start_all_reduce_(self.group, part_BTC)
            out_BtC = part_BTC
        else:
            num_sequences, num_positions, width = part_BTC.shape
            length = num_positions // self.group.size
            parts_BRtC = part_BTC.view(num_sequences, self.group.size, length, width)
            parts = parts_BRtC.transpose(0, 1).flatten()
            out_BtC = part_BTC.new_empty((num_sequences, length, width))
            reduction = start_reduce_scatter(self.group, out_BtC.view(-1), parts)

        def finish() -> Tensor:
            reduction.wait()
            return out_BtC

        return finish

    def added_up(self, counts_BE: Tensor) -> Tensor:
        """Over all positions of sequences, of which this rank may have some."""
        if self.sequence:
            all_reduce_(self.group, counts_BE)
        return counts_BE


class _Enter(Function):
    @staticmethod
    def forward(ctx: Any, border: _Border, x_BtC: Tensor) -> Tensor:
        ctx.border = border
        x_BTC = border.enter(x_BtC)()
        return x_BTC if border.sequence else x_BTC.view_as(x_BTC)

    @staticmethod
    def backward(ctx: Any, part_BTC: Tensor) -> tuple[None, Tensor]:
        return None, ctx.border.leave(part_BTC.clone())()


class _Leave(Function):
    @staticmethod
    def forward(ctx: Any, border: _Border, part_BTC: Tensor) -> Tensor:
        ctx.border = border
        return border.leave(part_BTC.clone())()

    @staticmethod
    def backward(ctx: Any, grad_BtC: Tensor) -> tuple[None, Tensor]:
        return None, ctx.border.enter(grad_BtC)()


class _Columns(Function):
    @staticmethod
    def forward(ctx: Any, border: _Border, x_BtC: Tensor, *parameters: Any) -> tuple[Tensor, ...]:
        """The parameters are weight, bias, weight, bias and so on."""
        weights_FC, biases_F = parameters[::2], parameters[1::2]
        x_BTC = border.enter(x_BtC)()
        ctx.border = border
        ctx.save_for_backward(x_BtC if border.regathers else x_BTC, *weights_FC)
        pairs = zip(weights_FC, biases_F, strict=True)
        return tuple(functional.linear(x_BTC, weight_FC, bias_F) for weight_FC, bias_F in pairs)

    @staticmethod
    def backward(ctx: Any, *grads_BTF: Tensor) -> tuple[Tensor | None, ...]:
        """The messages of either half are under way while the other is computed."""
        x, *weights_FC = ctx.saved_tensors
        border, asked, wanted = ctx.border, half_of(weights_FC[0]), ctx.needs_input_grad[3::2]
        grads_NF = [grad_BTF.flatten(0, 1) for grad_BTF in grads_BTF]
        x_BTC = of_input = None
        if asked.weights:
            x_BTC = border.enter(x) if border.regathers else lambda: x
        if asked.inputs:
            grad_NC = grads_NF[0] @ weights_FC[0]
            for grad_NF, weight_FC in zip(grads_NF[1:], weights_FC[1:], strict=True):
                grad_NC.addmm_(grad_NF, weight_FC)
            of_input = border.leave(grad_NC.view(*grads_BTF[0].shape[:2], -1))
        of_parameters: list[Tensor | None] = [None] * len(ctx.needs_input_grad[2:])
        if x_BTC:
            x_NC = x_BTC().flatten(0, 1)
            of_parameters[::2] = map(weight_gradient, weights_FC, grads_NF, [x_NC] * len(wanted))
            of_parameters[1::2] = map(_bias_gradient, grads_NF, wanted)
        return None, of_input() if of_input else None, *of_parameters


class _Row(Function):
    @staticmethod
    def forward(
        ctx: Any, border: _Border, x_BTF: Tensor, weight_CF: Tensor, bias_C: Tensor | None
    ) -> Tensor:
        ctx.border = border
        ctx.save_for_backward(x_BTF, weight_CF)
        out_BtC = border.leave(functional.linear(x_BTF, weight_CF))()
        return out_BtC if bias_C is None else out_BtC.add_(bias_C)

    @staticmethod
    def backward(ctx: Any, grad_BtC: Tensor) -> tuple[Tensor | None, ...]:
        x_BTF, weight_CF = ctx.saved_tensors
        half = half_of(weight_CF)
        entering = ctx.border.enter(grad_BtC)
        grad_C = of_weight = grad_BTF = None
        if half.weights and ctx.needs_input_grad[3]:
            grad_C = grad_BtC.sum((0, 1))
        grad_NC = entering().flatten(0, 1)
        if half.inputs:
            grad_BTF = (grad_NC @ weight_CF).view_as(x_BTF)
        if half.weights:
            of_weight = weight_gradient(weight_CF, grad_NC, x_BTF.flatten(0, 1))
        return None, grad_BTF, of_weight, grad_C


class _Embed(Function):
    @staticmethod
    def forward(
        ctx: Any, border: _Border, rows: range, tokens_BT: Tensor, weight_VC: Tensor
    ) -> Tensor:
        part_BTC, index_BT = vocabulary.lookup(tokens_BT, weight_VC, rows)
        ctx.border, ctx.num_rows = border, len(weight_VC)
        ctx.save_for_backward(index_BT)
        return border.leave(part_BTC)()

    @staticmethod
    def backward(ctx: Any, grad_BtC: Tensor) -> tuple[None, None, None, Tensor]:
        [index_BT] = ctx.saved_tensors
        grad_BTC = ctx.border.enter(grad_BtC)()
        return None, None, None, vocabulary.lookup_gradient(grad_BTC, index_BT, ctx.num_rows)


def _bias_gradient(grad_NF: Tensor, wanted: bool) -> Tensor | None:  # noqa: FBT001
    return grad_NF.sum(0) if wanted else None
