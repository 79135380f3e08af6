"""Messages of all ranks: each is sent and received, in one order, and nobody waits for ever.

A send waits here until it is received. A device may do so, or a group whose buffers are full; a
schedule that ends even then ends everywhere.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.schedules.operations import (
    BorderMessage,
    Exchange,
    Operation,
    Receive,
    Send,
    Transfer,
)

_Way = tuple[int, int]  # from, to


def check_messages(schedules: Sequence[Sequence[Operation]]) -> None:
    """Cost: linear in the number of operations. Raises: ScheduleError."""
    for rank, schedule in enumerate(schedules):
        for operation in schedule:
            if isinstance(operation, Transfer):
                _check_peer(rank, operation, len(schedules))
    _AllRanks(schedules).run()


def given(operation: Operation) -> BorderMessage | None:
    """What is sent by it."""
    match operation:
        case Send(message=message) | Exchange(send=message):
            return message
        case _:
            return None


def taken(operation: Operation) -> BorderMessage | None:
    """What is received by it."""
    match operation:
        case Receive(message=message) | Exchange(receive=message):
            return message
        case _:
            return None


def _check_halves(schedules: Sequence[Sequence[Operation]]) -> None:
    """Names a message that is not taken as often as it is given, before those that wait for it."""
    sent: Counter[tuple[_Way, BorderMessage]] = Counter()
    received: Counter[tuple[_Way, BorderMessage]] = Counter()
    for rank, schedule in enumerate(schedules):
        for operation in schedule:
            if isinstance(operation, Transfer):
                if message := given(operation):
                    sent[(rank, operation.peer), message] += 1
                if message := taken(operation):
                    received[(operation.peer, rank), message] += 1
    for (source, target), message in {**received, **sent}:
        gives, takes = sent[(source, target), message], received[(source, target), message]
        if takes > gives:
            raise ScheduleError(
                f"rank {target} receives {message} from rank {source}, which sends it {gives} "
                f"times, not {takes}"
            )
        if gives > takes:
            raise ScheduleError(
                f"rank {source} sends {message} to rank {target}, which receives it {takes} "
                f"times, not {gives}"
            )


def _check_peer(rank: int, operation: Transfer, num_ranks: int) -> None:
    if operation.peer == rank or not 0 <= operation.peer < num_ranks:
        raise ScheduleError(
            f"rank {rank}: {operation} has a peer that is not another rank below {num_ranks}"
        )


@dataclass(slots=True)
class _AllRanks:
    """All ranks at once, each up to where it waits. `open` is how many halves it waits for."""

    schedules: Sequence[Sequence[Operation]]
    places: list[int] = field(init=False)
    open: list[int] = field(init=False)
    offered: dict[_Way, BorderMessage] = field(default_factory=dict)
    wanted: dict[_Way, BorderMessage] = field(default_factory=dict)
    waiting: dict[int, Transfer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = [0] * len(self.schedules)
        self.open = [0] * len(self.schedules)

    def run(self) -> None:
        ready = deque(range(len(self.schedules)))
        while ready:
            ready.extend(self._advance(ready.popleft()))
        if self.waiting:
            _check_halves(self.schedules)
            raise ScheduleError(f"the ranks wait for each other: {self._circle()}")

    def _advance(self, rank: int) -> Iterator[int]:
        """Runs a rank until it waits or ends; the ranks that need not wait any longer for it."""
        schedule = self.schedules[rank]
        for place in range(self.places[rank], len(schedule)):
            operation = schedule[place]
            if isinstance(operation, Transfer):
                yield from self._post(rank, operation)
                if self.open[rank]:
                    self.places[rank], self.waiting[rank] = place + 1, operation
                    return
        self.places[rank] = len(schedule)

    def _post(self, rank: int, operation: Transfer) -> Iterator[int]:
        """Both halves of it at once."""
        if message := given(operation):
            way = rank, operation.peer
            self.offered[way] = message
            yield from self._meet(way, rank)
        if message := taken(operation):
            way = operation.peer, rank
            self.wanted[way] = message
            yield from self._meet(way, rank)

    def _meet(self, way: _Way, rank: int) -> Iterator[int]:
        """The other rank, if this was the last that it has waited for."""
        if way not in self.offered or way not in self.wanted:
            self.open[rank] += 1
            return
        offered, wanted = self.offered.pop(way), self.wanted.pop(way)
        if offered != wanted:
            _check_halves(self.schedules)
            raise ScheduleError(
                f"rank {way[1]} receives {wanted} from rank {way[0]}, which sends {offered} first"
            )
        peer = sum(way) - rank
        self.open[peer] -= 1
        if not self.open[peer]:
            del self.waiting[peer]
            yield peer

    def _circle(self) -> str:
        """Who waits for whom, from any of them round to the same one."""
        rank, seen = min(self.waiting), []
        while rank not in seen:
            seen.append(rank)
            rank = self.waiting[rank].peer
        circle = seen[seen.index(rank) :]
        return ", ".join(f"rank {one} {self._wish(one)}" for one in circle)

    def _wish(self, rank: int) -> str:
        """What it waits for: of an exchange what it wants, as long as that is not there."""
        operation = self.waiting[rank]
        message = self.wanted.get((operation.peer, rank))
        if message is not None:
            return f"for {message} from rank {operation.peer}"
        return f"to give {self.offered[rank, operation.peer]} to rank {operation.peer}"
