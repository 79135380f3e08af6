"""One exchange of state among ranks: who sends which boxes to whom, in rounds that overlap."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remesh.parallel.groups.collectives import start_all_to_all
from remesh.parallel.groups.group import Group, PendingOperation
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.plan.cut import Held
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.reshard import HeldFragment, Holder, Move, reshard_all

ROUND_BYTES = 8 * 2**20  # that a rank sends to another at once, unless a single box has more

_ALIGNMENT = 8  # bytes: every tensor type can be read from such a place
_META = torch.device("meta")

_Pairs = dict[tuple[int, int], list[Move]]


@dataclass(frozen=True, slots=True)
class StateExchange:
    """Moves to the ranks that lack their part from those that hold it."""

    spec: EngineSpec
    group: Group
    held: Mapping[int, Sequence[Held]]
    lacking: Mapping[int, Held]
    round_bytes: int

    def run(self, own_states: Sequence[ShardState], target: ShardState) -> None:
        """A round is packed and one is unpacked while one is on its way, in two buffers by turns:
        memory that has been used before is several times as fast, and there is little of it.
        """
        plans = self._plans()
        source = {box: tensor for state in own_states for box, tensor in state.fragments()}
        own = dict(target.fragments())
        for move in plans.get(self.group.rank, []):
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
        holders: dict[Held, list[Holder]] = defaultdict(list)
        for rank, parts in self.held.items():
            for part in parts:
                holders[part].append(rank)
        all_held = {*self.lacking.values(), *holders}
        fragments = {held: _fragments(self.spec, held) for held in all_held}
        have: dict[str, list[HeldFragment]] = {}
        for held, sources in holders.items():
            for fragment in fragments[held]:
                held_alike = HeldFragment(fragment=fragment, holders=tuple(sources))
                have.setdefault(fragment.name, []).append(held_alike)
        return reshard_all(have, {rank: fragments[one] for rank, one in self.lacking.items()})

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

    operation: PendingOperation
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
            assert isinstance(move.source, int)
            pair = (move.source, destination)
            number, num_bytes = filled.get(pair, (0, 0))
            if num_bytes and num_bytes + _room(move) > round_bytes:
                number, num_bytes = number + 1, 0
            filled[pair] = (number, num_bytes + _room(move))
            while len(rounds) <= number:
                rounds.append(defaultdict(list))
            rounds[number][pair].append(move)
    return rounds


def _fragments(spec: EngineSpec, held: Held) -> list[Fragment]:
    """What a rank that holds this holds, without holding it."""
    return [fragment for fragment, _ in ShardState(spec, held, _META).fragments()]


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
