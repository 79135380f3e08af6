"""Who is there: nodes and the workers on them, as values that change.

Only nodes in use count: spare, leaving, drained and quarantined ones get no workers.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class NodeState(StrEnum):
    """`SPARE`: more nodes than are wanted. `DRAINED`: left empty, and never used again."""

    SPARE = "spare"
    USED = "used"
    LEAVING = "leaving"
    DRAINED = "drained"
    QUARANTINED = "quarantined"


class WorkerState(StrEnum):
    """`LEAVING`: in no mesh, and on a node that leaves."""

    STARTING = "starting"
    IDLE = "idle"
    MEMBER = "member"
    LEAVING = "leaving"
    ENDING = "ending"


READY = frozenset({WorkerState.IDLE, WorkerState.MEMBER})


@dataclass(slots=True, kw_only=True)
class Node:
    """`hurt_in` is the newest generation that lost a member here. `workers` are those on it, by
    name. `late_starts`: so many starts in a row took too long here.

    `returns`: a leaving node becomes a spare. `until_s` is the moment at which a quarantine ends,
    or a leaving node is gone, if that is known. Slots from `next_slot` on were never taken, those
    of `free_slots` (a heap) were left. `warm`: a worker became ready here since it is used, so the
    next one is there in a moment.
    """

    name: str
    slots: int
    domain: str
    head: bool
    host: str = ""
    state: NodeState = NodeState.USED
    returns: bool = False
    until_s: float | None = None
    workers: dict[str, None] = field(default_factory=dict)
    num_ready: int = 0
    num_starting: int = 0
    late_starts: int = 0
    warm: bool = False
    hurt_in: int = 0
    next_slot: int = 0
    free_slots: list[int] = field(default_factory=list)

    @property
    def num_workers(self) -> int:
        return len(self.workers)

    @property
    def room(self) -> int:
        """How many workers may be started here now: where starts were late, few at a time."""
        at_once = max(1, self.slots >> self.late_starts) - self.num_starting
        return max(0, min(self.slots - self.num_workers, at_once))


@dataclass(slots=True, kw_only=True)
class Worker:
    """`held` is the (generation, step) of whose state the worker held its part when it was last
    parked, `held_rank` its rank in that generation; `rank` is that in its newest one.

    `slot` is its place on the node, `device` the index of the device that it was given there, if it
    was. `leaving`: its node leaves.
    """

    name: str
    node: str
    number: int
    slot: int = 0
    device: int | None = None
    state: WorkerState = WorkerState.STARTING
    pid: int = 0
    held: tuple[int, int] | None = None
    held_rank: int = 0
    rank: int = 0
    leaving: bool = False


@dataclass(slots=True, kw_only=True)
class UnitCount:
    """Groups of `size` on one node each: of slots, of ready workers, of workers in any state."""

    size: int
    slots: int = 0
    ready: int = 0
    filled: int = 0

    def add(self, node: Node, sign: int) -> None:
        self.slots += sign * (node.slots // self.size)
        self.ready += sign * (node.num_ready // self.size)
        self.filled += sign * (node.num_workers // self.size)
