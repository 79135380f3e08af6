"""Snapshots as a source of state: what a rank needs to know of a slot, wherever it lies."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.errors import CheckpointError, SlotError
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import ShardHeader
from remesh.parallel.state.reading import read_boxes
from remesh.parallel.state.reshard import Move
from remesh.parallel.state.storage import Blob


class SlotReader(Protocol):
    """A snapshot as its vault hands it out, laid out as a shard of a checkpoint is."""

    def header(self) -> ShardHeader:
        """Proven. Raises: OSError, CheckpointError."""
        ...

    def get_range(self, start: int, length: int) -> Blob:
        """Raises: OSError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSource:
    """What one rank held of the state at the step that is wanted, in a snapshot, and how to get it.

    `name` is the same on all ranks.
    """

    name: str
    held: Held
    open: Callable[[], AbstractContextManager[SlotReader]]


def read_slots(
    slots: Sequence[SlotSource], moves: Sequence[Move], own: Mapping[Fragment, Tensor]
) -> None:
    """Reads what these moves take from slots. Raises: SlotError for one that cannot be read."""
    for slot in slots:
        wanted = [move for move in moves if move.source == slot.name]
        if wanted:
            try:
                with slot.open() as reader:
                    read_boxes(reader.header(), wanted, reader.get_range, own)
            except (OSError, CheckpointError) as error:
                raise SlotError(slot.name, str(error)) from None
