"""Who is there: nodes, the workers on them, and who of them makes up a mesh.

Only nodes in use count: spare, leaving, drained and quarantined ones get no workers. Workers are
started evenly over the nodes until members and spares are complete or the nodes are full, those of
a tp group in a row; a dead worker's place is filled again on any living node with room. A mesh
takes first who holds the newest state, then spares, those on a node that has just lost a member
last.
"""

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from remesh.orchestrator.plan.placement import Device


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
class Roster:
    """Living nodes and workers by name. Names of workers are never used twice.

    What is counted are slots, workers and nodes in use; ready are warm workers, and nodes with one.
    `num_groups`, `num_filled` and `num_slot_groups` are the groups of `tp` ready workers, of any
    workers, and of slots, on one node each. `spare` and `leaving` name the nodes in that state,
    longest there first.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    counts: dict[WorkerState, int] = field(default_factory=lambda: dict.fromkeys(WorkerState, 0))
    tp: int = 1
    num_slots: int = 0
    num_slot_groups: int = 0
    num_ready: int = 0
    num_groups: int = 0
    num_filled: int = 0
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
        self._count_worker(node, 1)
        self.workers[worker.name] = worker
        self.counts[worker.state] += 1
        return worker

    def move(self, worker: Worker, state: WorkerState) -> None:
        self.counts[worker.state] -= 1
        self.counts[state] += 1
        self._count_ready(worker, (state in READY) - (worker.state in READY))
        worker.state = state

    def remove(self, worker: Worker) -> None:
        del self.workers[worker.name]
        self.counts[worker.state] -= 1
        self._count_ready(worker, -(worker.state in READY))
        if worker.node in self.nodes:
            node = self.nodes[worker.node]
            self._count_worker(node, -1)
            heapq.heappush(node.free_slots, worker.slot)

    def places(self, wanted: int, spares: int = 0) -> list[str]:
        """Nodes for new workers until `wanted` live, in whole tp groups, and `spares` beside them.

        A worker on a node that has no room for a group is a spare at best.
        """
        missing = self._missing(wanted + spares)
        groups = min(wanted // self.tp, self.num_slot_groups) - self.num_filled
        if missing <= 0 and groups <= 0:
            return []
        free = [
            (*self._need(node.num_workers, node.slots), not node.head, node.name, node.slots)
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
            groups -= (num_workers + 1) % self.tp == 0
            if num_workers + 1 < slots:
                need = self._need(num_workers + 1, slots)
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

    def _missing(self, wanted: int) -> int:
        """Workers until `wanted` live. One that is being ended still fills a slot.

        In its place another is started elsewhere at once; one for a tp group has to wait for it.
        """
        away = [w for w in self.workers.values() if w.node in self.leaving] if self.leaving else []
        here = len(self.workers) - len(away)
        missing = min(wanted, self.num_slots) - here
        if self.tp == 1:
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

    def _need(self, num_workers: int, slots: int) -> tuple[bool, int, int]:
        """Where a worker is wanted most comes first: where fewest are missing of a tp group."""
        missing = self.tp - num_workers % self.tp
        return (num_workers + missing > slots, missing, num_workers)

    def _count(self, node: Node, sign: int) -> None:
        """Take a node into account in its present state, or out of it."""
        if node.state is NodeState.USED:
            self.num_slots += sign * node.slots
            self.num_slot_groups += sign * (node.slots // self.tp)
            self.num_ready += sign * node.num_ready
            self.num_groups += sign * (node.num_ready // self.tp)
            self.num_filled += sign * (node.num_workers // self.tp)
            self.num_used += sign
            self.num_ready_nodes += sign * (node.num_ready > 0)
        for state, names in ((NodeState.SPARE, self.spare), (NodeState.LEAVING, self.leaving)):
            if node.state is state and sign > 0:
                names[node.name] = None
            elif node.state is state:
                del names[node.name]

    def _count_worker(self, node: Node, change: int) -> None:
        before = node.num_workers
        node.num_workers += change
        if node.state is NodeState.USED:
            self.num_filled += node.num_workers // self.tp - before // self.tp

    def _count_ready(self, worker: Worker, change: int) -> None:
        node = self.nodes.get(worker.node)
        if node is None or not change:
            return
        before = node.num_ready
        node.num_ready += change
        if node.state is NodeState.USED:
            self.num_ready += change
            self.num_groups += node.num_ready // self.tp - before // self.tp
            self.num_ready_nodes += (node.num_ready > 0) - (before > 0)
