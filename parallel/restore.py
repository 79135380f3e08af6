"""State from the other ranks: the cheapest way back, and the way to another layout.

What no rank holds comes from snapshots in the memory of nodes, read by those who want it.

Every rank tells which part of the state it holds and at which step. What each lacks then follows
from the layouts alone, on all ranks alike, and one exchange moves it: from replicas to a rank that
joined, or from everybody to everybody when the layout changes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from remesh.parallel.collectives import all_gather, all_to_all
from remesh.parallel.engine import Engine, Holding
from remesh.parallel.errors import CheckpointError, SlotError
from remesh.parallel.group import Group
from remesh.parallel.layout import Layout
from remesh.parallel.mesh import Mesh
from remesh.parallel.shard_state import Cut, ShardState
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import ShardHeader
from remesh.parallel.state.reading import read_boxes
from remesh.parallel.state.reshard import Held, Move, Source, reshard_all
from remesh.parallel.state.storage import Blob

_ALIGNMENT = 8  # bytes: every tensor type can be read from such a place
_META = torch.device("meta")


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
    """A part of the state at the step that is wanted, in a snapshot: which part, and how to get it.

    It is that of `rank` in a mesh of this layout. `name` is the same on all ranks.
    """

    name: str
    layout: Layout
    shard_size: int
    rank: int
    open: Callable[[], AbstractContextManager[SlotReader]]


def share_state(
    engine: Engine,
    mesh: Mesh,
    holding: Holding | None,
    at_step: int,
    slots: Sequence[SlotSource] = (),
) -> None:
    """Brings every rank to `at_step` with what the holdings of all of them and `slots` make up.

    All ranks call it, after `Engine.form`, with what they held before and the same slots. A rank
    that has its part already keeps it. What arrives from ranks is copied, never received in place:
    an exchange that is left behind may still write. A failed exchange leaves everyone with what it
    held.

    Raises: Cancelled, GroupError; SlotError; ReshardError if all of it is not the whole state.
    """
    if holding is not None and holding.at_step != at_step:
        holding = None
    try:
        held = _announce(mesh.world, holding)
        wanted = {rank: Cut.at(engine.spec, mesh.layout, mesh.shard.size, rank) for rank in held}
        lacking = {rank: cut for rank, cut in wanted.items() if held[rank] != cut}
        if lacking:
            exchange = _Exchange(engine.spec, mesh.world, held, lacking, slots)
            exchange.run(holding, engine.shard_state)
        if holding is not None and mesh.world.rank not in lacking:
            _copy(holding.state, engine.shard_state)
    except BaseException:
        engine.put_back(holding)
        raise
    engine.loaded(at_step)


def _announce(group: Group, holding: Holding | None) -> dict[int, Cut | None]:
    """Which part of the state each rank holds, None for none."""
    own = torch.zeros(len(fields(Cut)), dtype=torch.int64)
    if holding is not None:
        own = torch.tensor(astuple(holding.state.cut))
    told = own.new_empty(group.size * len(own))
    all_gather(group, told, own)
    rows = told.view(group.size, -1).tolist()
    names = [part.name for part in fields(Cut)]
    return {
        rank: Cut(**dict(zip(names, row, strict=True))) if any(row) else None
        for rank, row in enumerate(rows)
    }


def _copy(source: ShardState, target: ShardState) -> None:
    """Between two memories that are cut alike; nothing where they are one."""
    if source is not target:
        for (_, old), (_, new) in zip(source.fragments(), target.fragments(), strict=True):
            new.copy_(old)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Moves to the ranks that lack their part from those that hold it."""

    spec: EngineSpec
    group: Group
    held: Mapping[int, Cut | None]
    lacking: Mapping[int, Cut]
    slots: Sequence[SlotSource]

    def run(self, holding: Holding | None, target: ShardState) -> None:
        plans = self._plans()
        rank, ranks = self.group.rank, range(self.group.size)
        mine = [move for move in plans.get(rank, ()) if not move.is_local]
        received = [[move for move in mine if move.source == other] for other in ranks]
        sent = [
            [m for m in plans.get(other, ()) if m.source == rank and not m.is_local]
            for other in ranks
        ]
        source = dict(holding.state.fragments()) if holding else {}
        own = dict(target.fragments())
        self._read_slots(mine, own)
        incoming = self._send(source, sent, received)
        for move in plans.get(rank, ()):
            if move.is_local:
                own[move.want][move.write] = source[move.held][move.read]
        for move, part in incoming:
            own[move.want][move.write] = part

    def _plans(self) -> dict[int, list[Move]]:
        holders: dict[Cut, list[Source]] = defaultdict(list)
        for rank, held in self.held.items():
            if held:
                holders[held].append(rank)
        for slot in self.slots:
            cut = Cut.at(self.spec, slot.layout, slot.shard_size, slot.rank)
            holders[cut].append(slot.name)
        cuts = {*self.lacking.values(), *holders}
        fragments = {cut: _fragments(self.spec, cut) for cut in cuts}
        have: dict[str, list[Held]] = {}
        for cut, sources in holders.items():
            for fragment in fragments[cut]:
                held_alike = Held(fragment=fragment, holders=tuple(sources))
                have.setdefault(fragment.name, []).append(held_alike)
        return reshard_all(have, {rank: fragments[cut] for rank, cut in self.lacking.items()})

    def _read_slots(self, mine: Sequence[Move], own: Mapping[Fragment, Tensor]) -> None:
        """First of all: nobody has sent anything yet if a slot cannot be read."""
        for slot in self.slots:
            moves = [move for move in mine if move.source == slot.name]
            if moves:
                try:
                    with slot.open() as reader:
                        read_boxes(reader.header(), moves, reader.get_range, own)
                except (OSError, CheckpointError) as error:
                    raise SlotError(slot.name, str(error)) from None

    def _send(
        self,
        source: Mapping[Fragment, Tensor],
        sent: Sequence[Sequence[Move]],
        received: Sequence[Sequence[Move]],
    ) -> Iterator[tuple[Move, Tensor]]:
        sizes = [sum(map(_room, moves)) for moves in sent]
        out_sizes = [sum(map(_room, moves)) for moves in received]
        packed = torch.empty(sum(sizes), dtype=torch.uint8)
        for place, move in _places(packed, sent):
            place.copy_(source[move.held][move.read])
        arrived = torch.empty(sum(out_sizes), dtype=torch.uint8)
        all_to_all(self.group, arrived, packed, out_sizes, sizes)
        return ((move, place) for place, move in _places(arrived, received))


def _fragments(spec: EngineSpec, cut: Cut) -> list[Fragment]:
    """What a rank with this part holds, without holding it."""
    return [fragment for fragment, _ in ShardState(spec, cut, _META).fragments()]


def _places(
    flat: Tensor, moves_of_ranks: Sequence[Sequence[Move]]
) -> Iterator[tuple[Tensor, Move]]:
    """The place of each move's box in a buffer of bytes."""
    start = 0
    for move in (move for moves in moves_of_ranks for move in moves):
        dtype: torch.dtype = getattr(torch, move.box.dtype)
        yield flat[start : start + move.box.num_bytes].view(dtype).view(move.box.sizes), move
        start += _room(move)


def _room(move: Move) -> int:
    return -(-move.box.num_bytes // _ALIGNMENT) * _ALIGNMENT
