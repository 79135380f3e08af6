"""Who is there: nodes, the workers on them, and who of them makes up a mesh.

Only nodes in use count: spare, leaving, drained and quarantined ones get no workers. Workers are
started evenly over the nodes until members and spares are complete or the nodes are full, those of
a unit in a row; a dead worker's place is filled again on any living node with room. A mesh
takes first who holds the newest state, then spares, those on a node that has just lost a member
last.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from remesh.orchestrator.plan.placement import Device
from remesh.orchestrator.plan.rung import Unit


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
    """`hurt_in` is the newest generation that lost a member here.

    `returns`: a leaving node becomes a spare. `until_s` is the moment at which a quarantine ends,
    or a leaving node is gone, if that is known. Slots from `next_slot` on were never taken, those
    of `free_slots` (a heap) were left.
    """

    name: str
    slots: int
    domain: str
    head: bool
    host: str = ""
    state: NodeState = NodeState.USED
    returns: bool = False
    until_s: float | None = None
    num_workers: int = 0
    num_ready: int = 0
    hurt_in: int = 0
    next_slot: int = 0
    free_slots: list[int] = field(default_factory=list)


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


def _single() -> dict[int, UnitCount]:
    return {1: UnitCount(size=1)}


@dataclass(slots=True, kw_only=True)
class Roster:
    """Living nodes and workers by name. Names of workers are never used twice.

    What is counted are slots, workers and nodes in use; ready are warm workers, and nodes with one.
    `counted` has the units of each size that a mesh may be made of, and single workers. `spare` and
    `leaving` name the nodes in that state, longest there first.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    counts: dict[WorkerState, int] = field(default_factory=lambda: dict.fromkeys(WorkerState, 0))
    counted: dict[int, UnitCount] = field(default_factory=_single)
    num_used: int = 0
    num_ready_nodes: int = 0
    spare: dict[str, None] = field(default_factory=dict)
    leaving: dict[str, None] = field(default_factory=dict)
    next_number: int = 0

    @property
    def num_idle(self) -> int:
        return self.counts[WorkerState.IDLE]

    @property
    def num_members(self) -> int:
        return self.counts[WorkerState.MEMBER]

    @property
    def num_starting(self) -> int:
        return self.counts[WorkerState.STARTING]

    @property
    def num_slots(self) -> int:
        return self.counted[1].slots

    @property
    def num_ready(self) -> int:
        return self.counted[1].ready

    def ready_units(self, unit: Unit) -> int:
        """How many of them the ready workers make up."""
        there = self.counted[unit.workers].ready
        return there if unit.on_one_node else self.num_ready // unit.workers

    def slot_units(self, unit: Unit) -> int:
        """How many of them there is room for."""
        there = self.counted[unit.workers].slots
        return there if unit.on_one_node else self.num_slots // unit.workers

    def count_units(self, units: Iterable[Unit]) -> None:
        """From now on also those of these sizes.

        Cost: linear in the nodes.
        """
        sizes = sorted({1, *(unit.workers for unit in units)})
        self.counted = {size: UnitCount(size=size) for size in sizes}
        for node in self.nodes.values():
            self._count_slots(node, 1)

    def add_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self._count(node, 1)

    def turn_node(self, node: Node, state: NodeState) -> None:
        self._count(node, -1)
        node.state = state
        self._count(node, 1)

    def remove_node(self, name: str) -> list[Worker]:
        """The workers that were lost with the node."""
        node = self.nodes.pop(name)
        self._count(node, -1)
        lost = self.on(name)
        for worker in lost:
            self.remove(worker)
        return lost

    def on(self, node: str) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.node == node]

    def start(self, node_name: str) -> Worker:
        node = self.nodes[node_name]
        number = self.next_number
        slot = heapq.heappop(node.free_slots) if node.free_slots else node.next_slot
        node.next_slot = max(node.next_slot, slot + 1)
        worker = Worker(name=f"worker-{number}", node=node_name, number=number, slot=slot)
        self.next_number += 1
        self._change(node, workers=1)
        self.workers[worker.name] = worker
        self.counts[worker.state] += 1
        return worker

    def move(self, worker: Worker, state: WorkerState) -> None:
        self.counts[worker.state] -= 1
        self.counts[state] += 1
        node = self.nodes.get(worker.node)
        if node is not None:
            self._change(node, ready=(state in READY) - (worker.state in READY))
        worker.state = state

    def remove(self, worker: Worker) -> None:
        del self.workers[worker.name]
        self.counts[worker.state] -= 1
        if worker.node in self.nodes:
            node = self.nodes[worker.node]
            self._change(node, workers=-1, ready=-(worker.state in READY))
            heapq.heappush(node.free_slots, worker.slot)

    def places(self, wanted: int, unit: Unit, spares: int = 0) -> list[str]:
        """Nodes for new workers until `wanted` live, in whole units, and `spares` beside them.

        A worker on a node that has no room for a unit is a spare at best.
        """
        size, count = unit.workers, self.counted[unit.workers]
        missing = self._missing(wanted + spares, size)
        groups = min(wanted // size, count.slots) - count.filled
        if missing <= 0 and groups <= 0:
            return []
        free = [
            (*_need(node.num_workers, node.slots, size), not node.head, node.name, node.slots)
            for node in self.nodes.values()
            if node.num_workers < node.slots and node.state is NodeState.USED
        ]
        heapq.heapify(free)
        chosen = []
        while free and (missing > 0 or groups > 0):
            useless, _, num_workers, not_head, name, slots = heapq.heappop(free)
            if useless and missing <= 0:
                break
            chosen.append(name)
            missing -= 1
            groups -= (num_workers + 1) % size == 0
            if num_workers + 1 < slots:
                need = _need(num_workers + 1, slots, size)
                heapq.heappush(free, (*need, not_head, name, slots))
        return chosen

    def in_order(
        self,
        idle: list[Worker],
        held_step: Mapping[str, int],
        kept: Collection[str],
        generation: int,
    ) -> list[Worker]:
        """These workers, whom a mesh should take first in front: `kept` before all others.

        `held_step` has those that hold state; `generation` is the one that has just ended.
        """
        ranked = [
            (worker.name not in kept, -held_step.get(worker.name, -1), worker.number, worker)
            for worker in idle
        ]
        ranked.sort(key=lambda entry: entry[:3])
        depth: dict[str, int] = {}
        ordered = []
        for left_out, order, number, worker in ranked:
            depth[worker.node] = depth.get(worker.node, 0) + 1
            hurt = order > 0 and self.nodes[worker.node].hurt_in == generation > 0
            ordered.append((left_out, order, hurt, depth[worker.node], number, worker))
        ordered.sort(key=lambda entry: entry[:5])
        return [entry[5] for entry in ordered]

    def _missing(self, wanted: int, unit_size: int) -> int:
        """Workers until `wanted` live. One that is being ended still fills a slot.

        In its place another is started elsewhere at once; one for a larger unit has to wait for it.
        """
        away = [w for w in self.workers.values() if w.node in self.leaving] if self.leaving else []
        here = len(self.workers) - len(away)
        missing = min(wanted, self.num_slots) - here
        if unit_size == 1:
            missing += self.counts[WorkerState.ENDING]
            missing -= sum(worker.state is WorkerState.ENDING for worker in away)
        return min(missing, self.num_slots - here)

    def in_state(self, state: WorkerState) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.state is state]

    def device(self, worker: Worker) -> Device:
        """What the worker computes on: what it was given, else its place on the node."""
        node = self.nodes[worker.node]
        index = worker.slot if worker.device is None else worker.device
        return Device(node=node.name, index=index, domain=node.domain, head=node.head)

    def _count(self, node: Node, sign: int) -> None:
        """Take a node into account in its present state, or out of it."""
        self._count_slots(node, sign)
        if node.state is NodeState.USED:
            self.num_used += sign
            self.num_ready_nodes += sign * (node.num_ready > 0)
        for state, names in ((NodeState.SPARE, self.spare), (NodeState.LEAVING, self.leaving)):
            if node.state is state and sign > 0:
                names[node.name] = None
            elif node.state is state:
                del names[node.name]

    def _change(self, node: Node, *, workers: int = 0, ready: int = 0) -> None:
        """So many workers more are there, and so many more are ready."""
        self._count_slots(node, -1)
        was_ready = node.num_ready > 0
        node.num_workers += workers
        node.num_ready += ready
        self._count_slots(node, 1)
        if node.state is NodeState.USED:
            self.num_ready_nodes += (node.num_ready > 0) - was_ready

    def _count_slots(self, node: Node, sign: int) -> None:
        if node.state is NodeState.USED:
            for count in self.counted.values():
                count.add(node, sign)


def _need(num_workers: int, slots: int, unit_size: int) -> tuple[bool, int, int]:
    """Where a worker is wanted most comes first: where fewest are missing of a unit."""
    missing = unit_size - num_workers % unit_size
    return (num_workers + missing > slots, missing, num_workers)
