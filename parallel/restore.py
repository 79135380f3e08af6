"""State from the other ranks: the cheapest way back, and the way to another layout.

Every rank tells which part of the state it holds and at which step. What each lacks then follows
from the layouts alone, on all ranks alike, and one exchange moves it: from replicas to a rank that
joined, or from everybody to everybody when the layout changes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

from remesh.parallel.collectives import all_gather, start_all_to_all
from remesh.parallel.engine import Engine, Holding
from remesh.parallel.group import Group, Operation
from remesh.parallel.mesh import Mesh
from remesh.parallel.shard_state import Cut, ShardState
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.reshard import Held, Move, reshard_all

ROUND_BYTES = 8 * 2**20  # that a rank sends to another at once, unless a single box has more

_ALIGNMENT = 8  # bytes: every tensor type can be read from such a place
_META = torch.device("meta")

_Pairs = dict[tuple[int, int], list[Move]]


def share_state(
    engine: Engine,
    mesh: Mesh,
    holding: Holding | None,
    at_step: int,
    *,
    round_bytes: int = ROUND_BYTES,
) -> None:
    """Brings every rank to `at_step` with what the holdings of all of them make up.

    All ranks call it, after `Engine.form`, with what they held before. A rank that has its part
    already keeps it. What arrives is copied, never received in place: an exchange that is left
    behind may still write. A failed exchange leaves everyone with what it held.

    Raises: Cancelled, GroupError; ReshardError if the holdings do not make up the whole state.
    """
    if holding is not None and holding.at_step != at_step:
        holding = None
    try:
        held = _announce(mesh.world, holding)
        wanted = {rank: Cut.at(engine.spec, mesh.layout, mesh.shard.size, rank) for rank in held}
        lacking = {rank: cut for rank, cut in wanted.items() if held[rank] != cut}
        if lacking:
            exchange = _Exchange(engine.spec, mesh.world, held, lacking, round_bytes)
            exchange.run(holding, engine.shard_state)
        if holding is not None and mesh.world.rank not in lacking:
            _copy(holding.state, engine.shard_state)
    except BaseException:
        engine.put_back(holding)
        raise
    engine.loaded(at_step)


def _announce(group: Group, holding: Holding | None) -> dict[int, Cut | None]:
    """Which part of the state each rank holds, None for none."""
    own = torch.zeros(len(fields(Cut)), dtype=torch.int64, device=group.device)
    if holding is not None:
        own = torch.tensor(astuple(holding.state.cut), device=group.device)
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
    round_bytes: int

    def run(self, holding: Holding | None, target: ShardState) -> None:
        """A round is packed and one is unpacked while one is on its way, in two buffers by turns:
        memory that has been used before is several times as fast, and there is little of it.
        """
        plans = self._plans()
        source = dict(holding.state.fragments()) if holding else {}
        own = dict(target.fragments())
        for move in plans.get(self.group.rank, ()):
            if move.is_local:
                own[move.want][move.write] = source[move.held][move.read]
        buffers = [_Buffer(self.group.device), _Buffer(self.group.device)]
        on_its_way: _Sent | None = None
        for number, pairs in enumerate(_rounds(plans, self.round_bytes)):
            following = self._send(pairs, source, buffers[number % 2])
            if on_its_way:
                on_its_way.receive(own)
            on_its_way = following
        if on_its_way:
            on_its_way.receive(own)

    def _plans(self) -> dict[int, list[Move]]:
        fragments = {cut: _fragments(self.spec, cut) for cut in self._cuts()}
        have: dict[str, list[Held]] = {}
        for cut in dict.fromkeys(cut for cut in self.held.values() if cut):
            holders = tuple(rank for rank, other in self.held.items() if other == cut)
            for fragment in fragments[cut]:
                have.setdefault(fragment.name, []).append(Held(fragment=fragment, holders=holders))
        return reshard_all(have, {rank: fragments[cut] for rank, cut in self.lacking.items()})

    def _cuts(self) -> set[Cut]:
        return {*self.lacking.values(), *(cut for cut in self.held.values() if cut)}

    def _send(self, pairs: _Pairs, source: Mapping[Fragment, Tensor], buffer: "_Buffer") -> "_Sent":
        rank, ranks = self.group.rank, range(self.group.size)
        sent = [pairs.get((rank, other), []) for other in ranks]
        received = [pairs.get((other, rank), []) for other in ranks]
        sizes = [sum(map(_room, moves)) for moves in sent]
        out_sizes = [sum(map(_room, moves)) for moves in received]
        packed, arriving = buffer.take(sum(sizes), sum(out_sizes))
        for place, move in _places(packed, sent):
            place.copy_(source[move.held][move.read])
        operation = start_all_to_all(self.group, arriving, packed, out_sizes, sizes)
        return _Sent(operation=operation, parts=list(_places(arriving, received)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A round on its way, and where each box of it will lie."""

    operation: Operation
    parts: list[tuple[Tensor, Move]]

    def receive(self, own: Mapping[Fragment, Tensor]) -> None:
        self.operation.wait()
        for part, move in self.parts:
            own[move.want][move.write] = part


class _Buffer:
    """Memory of one round, which grows to the largest that it serves."""

    def __init__(self, device: torch.device) -> None:
        self._packed = self._arriving = torch.empty(0, dtype=torch.uint8, device=device)

    def take(self, packed_bytes: int, arriving_bytes: int) -> tuple[Tensor, Tensor]:
        if len(self._packed) < packed_bytes:
            self._packed = self._packed.new_empty(packed_bytes)
        if len(self._arriving) < arriving_bytes:
            self._arriving = self._arriving.new_empty(arriving_bytes)
        return self._packed[:packed_bytes], self._arriving[:arriving_bytes]


def _rounds(plans: Mapping[int, Sequence[Move]], round_bytes: int) -> list[_Pairs]:
    """What each sends to each other one, in rounds; the same on all ranks."""
    rounds: list[_Pairs] = []
    filled: dict[tuple[int, int], tuple[int, int]] = {}
    for destination, moves in plans.items():
        for move in moves:
            if move.is_local:
                continue
            pair = (int(move.source), destination)
            number, num_bytes = filled.get(pair, (0, 0))
            if num_bytes and num_bytes + _room(move) > round_bytes:
                number, num_bytes = number + 1, 0
            filled[pair] = (number, num_bytes + _room(move))
            while len(rounds) <= number:
                rounds.append(defaultdict(list))
            rounds[number][pair].append(move)
    return rounds


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
