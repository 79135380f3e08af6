"""Messages of all ranks: each is sent and received, in one order, and nobody waits for ever."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.schedules.operations import BorderMessage, Operation, Receive, Send

_Delivery = tuple[int, int, BorderMessage]  # from, to, what


def check_messages(schedules: Sequence[Sequence[Operation]]) -> None:
    """Cost: linear in the number of operations. Raises: ScheduleError."""
    _check_halves(schedules)
    _AllRanks(schedules).run()


def _check_halves(schedules: Sequence[Sequence[Operation]]) -> None:
    sent = Counter(_deliveries(schedules, Send))
    received = Counter(_deliveries(schedules, Receive))
    for source, target, message in received:
        delivery = source, target, message
        if received[delivery] > sent[delivery]:
            raise ScheduleError(
                f"rank {target} receives {message} from rank {source}, which sends it "
                f"{sent[delivery]} times, not {received[delivery]}"
            )
    for source, target, message in sent:
        delivery = source, target, message
        if sent[delivery] > received[delivery]:
            raise ScheduleError(
                f"rank {source} sends {message} to rank {target}, which receives it "
                f"{received[delivery]} times, not {sent[delivery]}"
            )


def _deliveries(
    schedules: Sequence[Sequence[Operation]], kind: type[Send] | type[Receive]
) -> Iterator[_Delivery]:
    for rank, schedule in enumerate(schedules):
        for operation in schedule:
            if isinstance(operation, kind):
                peer, message = operation.peer, operation.message
                yield (rank, peer, message) if kind is Send else (peer, rank, message)


@dataclass(slots=True)
class _AllRanks:
    """All ranks at once, each up to where it waits."""

    schedules: Sequence[Sequence[Operation]]
    places: list[int] = field(init=False)
    on_their_way: dict[tuple[int, int], deque[BorderMessage]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    waiting: dict[int, Receive] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = [0] * len(self.schedules)

    def run(self) -> None:
        ready = deque(range(len(self.schedules)))
        while ready:
            rank = ready.popleft()
            ready.extend(self._advance(rank))
        if self.waiting:
            raise ScheduleError(f"the ranks wait for each other: {self._circle()}")

    def _advance(self, rank: int) -> Iterator[int]:
        """Runs a rank until it waits or ends; those that need not wait any longer because of it."""
        schedule = self.schedules[rank]
        for place in range(self.places[rank], len(schedule)):
            operation = schedule[place]
            if isinstance(operation, Send):
                self.on_their_way[rank, operation.peer].append(operation.message)
                if self._waits_for(operation.peer, rank):
                    del self.waiting[operation.peer]
                    yield operation.peer
            elif isinstance(operation, Receive) and not self._receive(rank, operation):
                self.places[rank], self.waiting[rank] = place, operation
                return
        self.places[rank] = len(schedule)

    def _waits_for(self, rank: int, peer: int) -> bool:
        return rank in self.waiting and self.waiting[rank].peer == peer

    def _receive(self, rank: int, operation: Receive) -> bool:
        """Whether there is something to receive."""
        messages = self.on_their_way[operation.peer, rank]
        if not messages:
            return False
        if messages[0] != operation.message:
            raise ScheduleError(
                f"rank {rank} receives {operation.message} from rank {operation.peer}, which sends "
                f"{messages[0]} first"
            )
        messages.popleft()
        return True

    def _circle(self) -> str:
        """Who waits for whom, from any of them round to the same one."""
        rank, seen = min(self.waiting), []
        while rank not in seen:
            seen.append(rank)
            rank = self.waiting[rank].peer
        circle = seen[seen.index(rank) :]
        return ", ".join(
            f"rank {one} for {self.waiting[one].message} from rank {self.waiting[one].peer}"
            for one in circle
        )
