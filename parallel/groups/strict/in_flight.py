"""The tensors of an operation between its start and its wait.

The backend gets copies. What it is to write holds poison until the operation is waited for, so that
who reads too early reads no number; what it is to read is compared with the copy then.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Lent:
    """A user's tensor and the backend's copy of it. Poisoned on the user's side if `written`."""

    tensor: Tensor
    copy: Tensor
    written: bool

    @staticmethod
    def to_read(tensor: Tensor) -> "Lent":
        return Lent(tensor, tensor.detach().clone(), written=False)

    @staticmethod
    def to_write(tensor: Tensor) -> "Lent":
        lent = Lent(tensor, tensor.detach().clone(), written=True)
        tensor.data.fill_(_poison(tensor.dtype))
        return lent

    @property
    def was_touched(self) -> bool:
        """Whether somebody has written to the user's tensor meanwhile."""
        if self.written:
            now, value = self.tensor.data, _poison(self.tensor.dtype)
            is_poison = now.isnan() if now.is_floating_point() else now == value
            return not bool(is_poison.all())
        return not torch.equal(_bytes(self.tensor), _bytes(self.copy))

    def give_back(self) -> None:
        if self.written:
            self.tensor.data.copy_(self.copy)


def touched(lent: Sequence[Lent]) -> str:
    """What has been done too early to one of these tensors, or nothing."""
    for one in lent:
        if one.was_touched:
            what = "writes" if one.written else "reads"
            return f"a tensor that it {what} was changed before it was waited for"
    return ""


def unfit(tensors: Sequence[Tensor]) -> str:
    """Why a device could not take one of these tensors, or nothing."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            shape, strides = list(tensor.shape), list(tensor.stride())
            return f"a tensor of shape {shape} with strides {strides} is not contiguous"
    return ""


def _poison(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    if dtype == torch.bool:
        return True
    limits = torch.iinfo(dtype)
    return limits.min or limits.max


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
