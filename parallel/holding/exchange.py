"""One exchange of state among ranks, in rounds that overlap: each sends and receives its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remesh.parallel.groups.collectives import all_reduce_, start_all_to_all
from remesh.parallel.groups.group import Group, PendingOperation
from remesh.parallel.holding.own_moves import OwnMoves
from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.plan.cut import Held
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.reshard import Move, ReshardError

ROUND_BYTES = 8 * 2**20  # that a rank sends to another at once, unless a single box has more

_ALIGNMENT = 8  # bytes: every tensor type can be read from such a place
_IN_VAIN = -1  # rounds, where a plan came to nothing

_Moves = dict[int, list[Move]]


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

        Raises: ReshardError on all ranks, with nothing moved, if a rank lacks what nobody holds.
        """
        received, sent = self._planned()
        local = received.pop(self.group.rank, [])
        outgoing = [_rounds(sent.get(rank, ()), self.round_bytes) for rank in self._ranks]
        incoming = [_rounds(received.get(rank, ()), self.round_bytes) for rank in self._ranks]
        num_rounds = self._agreed(max(map(len, outgoing + incoming)))
        source = {box: tensor for state in own_states for box, tensor in state.fragments()}
        own = dict(target.fragments())
        for move in local:
            own[move.want][move.write] = source[move.held][move.read]
        buffers = [_Buffer(self.group.device), _Buffer(self.group.device)]
        on_its_way: _Sent | None = None
        for number in range(num_rounds):
            going, coming = _of_round(outgoing, number), _of_round(incoming, number)
            following = self._send(going, coming, source, buffers[number % 2])
            if on_its_way:
                on_its_way.receive(own)
            on_its_way = following
        if on_its_way:
            on_its_way.receive(own)

    @property
    def _ranks(self) -> range:
        return range(self.group.size)

    def _planned(self) -> tuple[_Moves, _Moves]:
        """What this rank receives and what it sends, by the other one."""
        moves = OwnMoves(self.spec, self.held, self.lacking, self.group.rank)
        try:
            return moves.received(), moves.sent()
        except ReshardError:
            self._agreed(_IN_VAIN)
            raise

    def _agreed(self, num_rounds: int) -> int:
        """The most that any rank needs. Raises: ReshardError if a plan has come to nothing."""
        told = torch.tensor([num_rounds, num_rounds == _IN_VAIN])
        all_reduce_(self.group, told, "max")
        most, in_vain = told.tolist()
        if in_vain and num_rounds != _IN_VAIN:
            raise ReshardError(
                "nobody holds what another rank needs, which says what that is; go back to a step "
                "that is held completely"
            )
        return int(most)

    def _send(
        self,
        sent: Sequence[Sequence[Move]],
        received: Sequence[Sequence[Move]],
        source: Mapping[Fragment, Tensor],
        buffer: "_Buffer",
    ) -> "_Sent":
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


def _rounds(moves: Sequence[Move], round_bytes: int) -> list[list[Move]]:
    """What goes from one rank to another, in rounds; the same at both ends."""
    rounds: list[list[Move]] = []
    filled = round_bytes
    for move in moves:
        if filled + _room(move) > round_bytes:
            rounds.append([])
            filled = 0
        rounds[-1].append(move)
        filled += _room(move)
    return rounds


def _of_round(rounds_of_ranks: Sequence[Sequence[list[Move]]], number: int) -> list[list[Move]]:
    return [rounds[number] if number < len(rounds) else [] for rounds in rounds_of_ranks]


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
