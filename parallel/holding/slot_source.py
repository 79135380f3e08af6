"""Snapshots as a source of state: what a rank needs to know of a slot, wherever it lies."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.errors import CheckpointError, SlotError
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import ShardHeader
from remesh.parallel.state.reading import RangeSource, read_boxes
from remesh.parallel.state.reshard import Move


class SlotReader(RangeSource, Protocol):
    """A snapshot as its vault hands it out, laid out as a shard of a checkpoint is."""

    def header(self) -> ShardHeader:
        """Proven, and before all else. Raises: OSError, CheckpointError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSource:
    """What one rank held of the state at the step that is wanted, in a snapshot, and how to get it.

    `name` tells which, if it cannot be read.
    """

    name: str
    held: Held
    open: Callable[[], AbstractContextManager[SlotReader]]


def read_slot(slot: SlotSource, own: Mapping[Fragment, Tensor]) -> None:
    """Fills these fragments, which are all of the slot.

    Raises: SlotError if it cannot be read; what stands in them then is nothing.
    """
    wanted = [
        Move(source=slot.name, destination=0, box=fragment, held=fragment, want=fragment)
        for fragment in own
    ]
    try:
        with slot.open() as reader:
            header = reader.header()
            read_boxes(header, wanted, reader, own)
    except (OSError, CheckpointError) as error:
        raise SlotError(slot.name, str(error)) from None
