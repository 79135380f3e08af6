"""Weights in other people's files as what a rank wants of the state."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remesh.parallel.files.convert_config import check_vocabulary
from remesh.parallel.files.convert_names import EMBEDDING, as_part
from remesh.parallel.files.foreign import Stored, read_stored
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig, Shapes, parameter_shapes
from remesh.parallel.state.fragments import Fragment, cover_problems
from remesh.parallel.state.shards import empty
from remesh.parallel.state.storage import Storage

_FLOATS = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Where every weight of a model lies, by our names. Nothing but headers has been read.

    `names` are what they, or their parts, are called there, by our names.
    """

    storage: Storage
    stored: tuple[Stored, ...]
    names: Mapping[str, str]

    def read(self, want: Sequence[Fragment]) -> dict[Fragment, Tensor]:
        """Boxes of the weights, in the dtypes that they name. Cost and errors: `read_stored`."""
        return read_stored(self.storage, self.stored, want)

    def start(self, want: Iterable[Fragment]) -> dict[Fragment, Tensor]:
        """Boxes of the state at step 0: these weights, all else 0.

        Raises: CheckpointError also if a weight is not finite, as it is or in the box's dtype: it
        would spread to all others, and every step would be skipped.
        """
        wanted = list(want)
        known = {one.fragment.name for one in self.stored}
        found = self.read([box for box in wanted if box.name in known])
        for box, tensor in found.items():
            self._check_finite(box, tensor)
        rest = (box for box in wanted if box.name not in known)
        return found | {box: empty(box).zero_() for box in rest}

    def _check_finite(self, box: Fragment, tensor: Tensor) -> None:
        # The least and the largest of all tell it without another tensor of that size.
        if not tensor.numel() or all(bound.isfinite() for bound in tensor.aminmax()):
            return
        first = (~tensor.isfinite()).nonzero()[0].tolist()
        place = [start + at for start, at in zip(box.offsets, first, strict=True)]
        value, theirs = tensor[tuple(first)].item(), self._called(box.name, place)
        raise CheckpointError(
            f"{theirs} is not finite: {value} at {place} as {box.dtype}; take the model "
            "from a moment at which it was"
        )

    def _called(self, name: str, place: Sequence[int]) -> str:
        """What the tensor is called in which this place of ours lies."""
        return self.names.get(name) or self.names[f"{name}#{place[0]}"]


def weights_of(
    storage: Storage, stored: Iterable[Stored], names: Mapping[str, str], config: ModelConfig
) -> Weights:
    """Those of a model of which each parameter is called otherwise in the files.

    Raises: CheckpointError if one has another shape, or is there in part only.
    """
    ours = {theirs: name for name, theirs in names.items()}
    shapes = parameter_shapes(config)
    found = tuple(_checked(one, ours[one.fragment.name], shapes) for one in stored)
    problems = cover_problems(one.fragment for one in found)
    if problems:
        raise CheckpointError(f"the files are not complete: {problems[0]}; fetch them again")
    return Weights(storage=storage, stored=found, names=names)


def _checked(one: Stored, part: str, shapes: Shapes) -> Stored:
    """A tensor of the files as the part of the model that it is."""
    theirs, shape, dtype = one.fragment.name, one.fragment.global_shape, one.fragment.dtype
    if dtype not in _FLOATS:
        raise CheckpointError(
            f"{one.path}: {theirs} is {dtype}; use weights in one of {', '.join(_FLOATS)}"
        )
    name, _, is_part = part.partition("#")
    if name == EMBEDDING and shape:
        check_vocabulary(f"{one.path}: the rows of {theirs}", shape[0])
    wanted = shapes[name][1:] if is_part else shapes[name]
    if shape != wanted:
        raise CheckpointError(
            f"{one.path}: {theirs} has the shape {shape}, and the model wants {wanted} for {part}; "
            "set the [model] table to the model that is there"
        )
    return replace(one, fragment=as_part(part, one.fragment, shapes[name]))


def check_tied(weights: Weights, head: Collection[Stored]) -> None:
    """A tied model whose files hold a head too: it has to be the embedding, to the bit.

    Cost: reads both. Raises: CheckpointError.
    """
    wanted = [one.fragment for one in head]
    for theirs, tensor in read_stored(weights.storage, head, wanted).items():
        mine = replace(theirs, name=EMBEDDING)
        # What is not finite is told as that, when it is read.
        if not torch.allclose(tensor, weights.read([mine])[mine], 0, 0, equal_nan=True):
            raise CheckpointError(
                f"the model is tied, but its {theirs.name} is not the embedding; set model.tied to "
                "false, and tie_word_embeddings where there is a config.json"
            )
