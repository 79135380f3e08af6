"""From what each rank computes to what it sends and receives meanwhile.

Nobody may wait for ever, even where a send waits until it is received. Nobody does if all ranks
have their messages in one order, each as far as it has a part in them. The order here is by the
time at which a message is needed, if sending takes none, or a moment before if it is made by then.
So a receive stands right before what needs it, or one pass earlier; a send is put forward to what
makes it, as far as it overtakes no other message. A send and a receive next to each other are an
exchange.

An empty visit sends nothing; all else stands where it stands in a replica that has a microbatch
there, so that replicas have collectives and messages in one order.

The alternative, messages written down with each schedule, is a list of special cases for each, and
where they go round (interleaving) or both ways (DualPipeV) nobody sees through it.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from remesh.parallel.plan.errors import ScheduleError
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.operations import Pass
from remesh.parallel.plan.schedules.rank_order import AtOnce, Task

# With forwards computed again in backward, as most large models do. Other costs leave these orders
# as good: where a forward takes four times a half of its backward, or ten times less, ranks have
# been seen to wait up to 3 % longer than for what they need, nowhere else.
_TIMES: Mapping[Pass, int] = {"forward": 2, "backward": 6, "input": 4, "weight": 2}
_MOMENT = 1  # half a forward: enough to find two ranks between passes, too little to find more

# What crosses a border between stages, of which slot: the gradient of an activation, or itself.
Crossing = tuple[bool, int, int]  # whether it is a gradient, border, slot

_Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Half:
    """A rank's part in a message: it gives it to a peer, or takes it."""

    peer: int
    gives: bool
    crossing: Crossing


ListEntry = AtOnce | list[Half]  # of one half, or of two with the same peer


def wire(orders: Sequence[Sequence[AtOnce]], pipeline: Pipeline) -> tuple[list[ListEntry], ...]:
    """Of each rank what it computes, gives and takes, in order, if every slot has a microbatch.

    Two passes at once begin when there is what both need, and what they make is there at their end.

    Cost: linear in the number of passes, but for sorting those of a rank.
    Raises: ScheduleError if the orders wait for each other.
    """
    times = _Times(orders, pipeline)
    times.run()
    lists: list[list[tuple[_Key, AtOnce | Half]]] = [
        [((start, 1), visit) for start, visit in zip(starts, order, strict=True)]
        for starts, order in zip(times.starts, orders, strict=True)
    ]
    rank_of = [pipeline.rank_of(stage) for stage in range(pipeline.num_stages)]
    for taker, needed in enumerate(times.needed):
        own, made = lists[taker], times.made
        for crossing, start in needed.items():
            giver = rank_of[crossing[1] + crossing[0]]
            if giver != taker:
                key = _key(max(made[crossing], start - _MOMENT), giver, crossing)
                lists[giver].append((key, Half(taker, gives=True, crossing=crossing)))
                own.append((key, Half(giver, gives=False, crossing=crossing)))
    return tuple(_placed(entries, pipeline) for entries in lists)


def needed_by(task: Task, pipeline: Pipeline) -> Crossing | None:
    """What has to be there before it."""
    return _needed(task, pipeline.num_stages - 1)


def made_by(task: Task, pipeline: Pipeline) -> Crossing | None:
    """What others may need of it."""
    return _made(task, pipeline.num_stages - 1)


def _needed(task: Task, last: int) -> Crossing | None:
    """`last` is the number of the last stage."""
    stage = task.stage
    if task.what == "forward":
        return (False, stage - 1, task.slot) if stage else None
    return (True, stage, task.slot) if task.what != "weight" and stage < last else None


def _made(task: Task, last: int) -> Crossing | None:
    stage = task.stage
    if task.what == "forward":
        return (False, stage, task.slot) if stage < last else None
    return (True, stage - 1, task.slot) if task.what != "weight" and stage else None


def _key(time: int, giver: int, crossing: Crossing) -> _Key:
    """The place of a message among all: by time, before what is computed from then on.

    At one time a rank gives before it takes: activations from the last giver on, gradients from the
    first. So a rank that is late does not make those late that wait for the ones after it.
    """
    is_gradient, border, slot = crossing
    return (time, 0, int(is_gradient), giver if is_gradient else -giver, border, slot)


@dataclass(slots=True)
class _Times:
    """When each visit starts, with nothing to wait for but what it needs.

    `needed` says of each rank when it needs what.
    """

    orders: Sequence[Sequence[AtOnce]]
    pipeline: Pipeline
    starts: list[list[int]] = field(init=False)
    needed: list[dict[Crossing, int]] = field(init=False)
    free: list[int] = field(init=False)
    made: dict[Crossing, int] = field(default_factory=dict)
    waiting: dict[Crossing, int] = field(default_factory=dict)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        self.starts = [[] for _ in self.orders]
        self.needed = [{} for _ in self.orders]
        self.free = [0] * len(self.orders)
        self.last = self.pipeline.num_stages - 1

    def run(self) -> None:
        ready = deque(range(len(self.orders)))
        while ready:
            ready.extend(self._advance(ready.popleft()))
        if self.waiting:
            crossing, rank = next(iter(self.waiting.items()))
            raise ScheduleError(f"rank {rank} waits for what is never there: {crossing}")

    def _advance(self, rank: int) -> Iterator[int]:
        """Goes on until a visit lacks what it needs; the ranks that waited for what is made."""
        order, starts, own = self.orders[rank], self.starts[rank], self.needed[rank]
        made, waiting, last, now = self.made, self.waiting, self.last, self.free[rank]
        for number in range(len(starts), len(order)):
            visit = order[number]
            needed = [one for task in visit if (one := _needed(task, last))]
            start = now
            for one in needed:
                if one not in made:
                    waiting[one], self.free[rank] = rank, now
                    return
                start = max(start, made[one])
            starts.append(start)
            now = start
            for one in needed:
                own[one] = start
            for task in visit:
                now += _TIMES[task.what]
            for task in visit:
                if (makes := _made(task, last)) is not None:
                    made[makes] = now
                    if makes in waiting:
                        yield waiting.pop(makes)
        self.free[rank] = now


def _placed(entries: list[tuple[_Key, AtOnce | Half]], pipeline: Pipeline) -> list[ListEntry]:
    """In order; a message as early as may be, together with one before it of the same peer."""
    found: list[ListEntry] = []
    last = pipeline.num_stages - 1
    for _, entry in sorted(entries, key=_first):
        if isinstance(entry, tuple):
            found.append(entry)
            continue
        place = _earliest(found, entry.crossing, last) if entry.gives else len(found)
        before = found[place - 1] if place else None
        if isinstance(before, list) and _fits(before, entry):
            before.append(entry)
        else:
            found.insert(place, [entry])
    return found


def _first(entry: tuple[_Key, AtOnce | Half]) -> _Key:
    return entry[0]


def _earliest(found: Sequence[ListEntry], given: Crossing, last: int) -> int:
    """Where it may be given at the earliest: after all messages, and after what makes it."""
    place = len(found)
    while place:
        before = found[place - 1]
        if isinstance(before, list) or any(_made(task, last) == given for task in before):
            break
        place -= 1
    return place


def _fits(before: list[Half], half: Half) -> bool:
    return len(before) == 1 and before[0].peer == half.peer and before[0].gives != half.gives
