"""All parameters of a model as views of one flat buffer.

One buffer makes the optimizer a handful of elementwise calls, and every collective a single one.
Each parameter starts on 64 bytes, because kernels treat an unaligned start differently, which
shows in the last bit. Matrices come first: weight decay, which they alone get, is then a slice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ALIGNMENT = 16  # fp32 elements in 64 bytes
CHUNK = 64  # elements: every cut of a flat buffer is a multiple of this


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a parameter lies in the flat buffer, in elements."""

    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatPlan:
    """Places of all parameters; the first `num_decayed` elements get weight decay."""

    places: Mapping[str, Place]
    num_decayed: int
    size: int

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        return {
            name: flat[place.start : place.stop].view(place.shape)
            for name, place in self.places.items()
        }


def plan_flat(shapes: Mapping[str, tuple[int, ...]]) -> FlatPlan:
    """Matrices first, norm weights and biases after them, each kind in the order given."""
    matrices = [name for name, shape in shapes.items() if len(shape) > 1]
    others = [name for name, shape in shapes.items() if len(shape) <= 1]
    places: dict[str, Place] = {}
    stop = num_decayed = 0
    for name in (*matrices, *others):
        places[name] = Place(start=_rounded(stop, ALIGNMENT), shape=tuple(shapes[name]))
        stop = places[name].stop
        num_decayed = stop if name in matrices else num_decayed
    return FlatPlan(places=places, num_decayed=num_decayed, size=_rounded(stop, CHUNK))


class FlatParameters:
    """A model's parameters moved into one fp32 buffer, `values`."""

    def __init__(self, model: nn.Module, plan: FlatPlan) -> None:
        self.plan = plan
        self.values = torch.zeros(plan.size)
        self._parameters = dict(model.named_parameters())

    def adopt(self) -> None:
        """Makes the model's parameters views of `values`."""
        for name, view in self.plan.views(self.values).items():
            self._parameters[name].data = view

    def point_gradients(self, flat: Tensor) -> None:
        """Has the next backward add to `flat`, which must hold numbers."""
        for name, view in self.plan.views(flat).items():
            self._parameters[name].grad = view


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
