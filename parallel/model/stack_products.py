"""Products of rows with the matrices of their experts: one after the other, or all in one kernel.

A device has a kernel for the products of all experts of a rank, whose rows lie one behind the other
(torch's `grouped_mm`); with one product each it would idle between many small ones. A CPU has
nothing to gain: there torch carries the same out as a loop of its own, with the same bits.

Shapes: M rows, sorted by expert; E experts, C and F the widths of a map.
Source: Gale et al. 2022 (arXiv:2211.15841), section 5.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

_ALIGNED_BYTES = 16  # of each row of what the kernel reads
_LEAST_CAPABILITY = 8, 0  # of a device that has it


class StackProducts(Protocol):
    """The products of one set of rows, which say how many each expert has."""

    def outputs(self, x_MC: Tensor, weights_EFC: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Of several maps of one input."""
        ...

    def of_input(self, grads_MF: Sequence[Tensor], weights_EFC: Sequence[Tensor]) -> Tensor:
        """The gradient of the input of several maps."""
        ...

    def add_of_weight(self, total_EFC: Tensor, grad_MF: Tensor, x_MC: Tensor) -> None:
        """Adds the gradient of a map; of an expert without rows nothing."""
        ...


def products_of(
    counts: Sequence[int], x_MC: Tensor, weights_EFC: Sequence[Tensor]
) -> StackProducts:
    """In the way that is best where the rows are."""
    kind, capability = x_MC.device.type, (0, 0)
    if kind == "cuda":
        capability = torch.cuda.get_device_capability(x_MC.device)
    widths = [x_MC.shape[1], *(weight.shape[1] for weight in weights_EFC)]
    grouped = len(x_MC) > 0 and has_grouped(capability, x_MC.dtype, widths)
    return Grouped(counts, x_MC.device) if grouped else Looped(counts)


def has_grouped(capability: tuple[int, int], dtype: torch.dtype, widths: Sequence[int]) -> bool:
    """Whether a device of this capability, (0, 0) for none, has a kernel for all at once."""
    aligned = all(width * dtype.itemsize % _ALIGNED_BYTES == 0 for width in widths)
    return capability >= _LEAST_CAPABILITY and dtype == torch.bfloat16 and aligned


class Looped:
    """A product of each expert that has rows."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts

    def outputs(self, x_MC: Tensor, weights_EFC: Sequence[Tensor]) -> tuple[Tensor, ...]:
        outs_MF = tuple(x_MC.new_empty(len(x_MC), weight.shape[1]) for weight in weights_EFC)
        for expert, rows in self._runs():
            for weight_EFC, out_MF in zip(weights_EFC, outs_MF, strict=True):
                torch.mm(x_MC[rows], weight_EFC[expert].t(), out=out_MF[rows])
        return outs_MF

    def of_input(self, grads_MF: Sequence[Tensor], weights_EFC: Sequence[Tensor]) -> Tensor:
        of_input = grads_MF[0].new_empty(len(grads_MF[0]), weights_EFC[0].shape[2])
        for expert, rows in self._runs():
            torch.mm(grads_MF[0][rows], weights_EFC[0][expert], out=of_input[rows])
            for grad_MF, weight_EFC in zip(grads_MF[1:], weights_EFC[1:], strict=True):
                of_input[rows].addmm_(grad_MF[rows], weight_EFC[expert])
        return of_input

    def add_of_weight(self, total_EFC: Tensor, grad_MF: Tensor, x_MC: Tensor) -> None:
        for expert, rows in self._runs():
            total_EFC[expert].addmm_(grad_MF[rows].t(), x_MC[rows])

    def _runs(self) -> Iterator[tuple[int, slice]]:
        """Each expert that has rows, and which."""
        start = 0
        for expert, count in enumerate(self._counts):
            if count:
                yield expert, slice(start, start + count)
            start += count


class Grouped:
    """The products of all experts at once. There is at least one row."""

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self._ends_E = torch.tensor(list(accumulate(counts)), dtype=torch.int32, device=device)
        self._empty = [expert for expert, count in enumerate(counts) if not count]

    def outputs(self, x_MC: Tensor, weights_EFC: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(self._product(x_MC, weight.transpose(1, 2)) for weight in weights_EFC)

    def of_input(self, grads_MF: Sequence[Tensor], weights_EFC: Sequence[Tensor]) -> Tensor:
        parts = (self._product(*pair) for pair in zip(grads_MF, weights_EFC, strict=True))
        of_input = next(parts)
        for part in parts:
            of_input.add_(part)
        return of_input

    def add_of_weight(self, total_EFC: Tensor, grad_MF: Tensor, x_MC: Tensor) -> None:
        """Of an expert without rows the kernel may leave what memory held before."""
        found_EFC = self._product(grad_MF.t(), x_MC)
        found_EFC[self._empty] = 0
        total_EFC.add_(found_EFC)

    def _product(self, rows: Tensor, others: Tensor) -> Tensor:
        found: Tensor = functional.grouped_mm(rows, others, offs=self._ends_E)
        return found
