"""Whom the run has at present, by name, and counts of them; who of them makes up a mesh.

Workers are started evenly over the nodes in use until members and spares are complete or the nodes
are full, those of a unit in a row; a dead worker's place is filled again on any living node with
room. A mesh takes first who holds the newest state, then spares, those on a node that has just lost
a member last.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from remesh.orchestrator.control.memory.membership import (
    READY,
    Node,
    NodeState,
    UnitCount,
    Worker,
    WorkerState,
)
from remesh.orchestrator.plan.placement import Device
from remesh.orchestrator.plan.rung import Unit


def _nobody() -> dict[WorkerState, dict[str, None]]:
    return {state: {} for state in WorkerState}


def _single() -> dict[int, UnitCount]:
    return {1: UnitCount(size=1)}


@dataclass(slots=True, kw_only=True)
class Roster:
    """Living nodes and workers by name. Names of workers are never used twice.

    What is counted are slots, workers and nodes in use; ready are warm workers, and nodes with one.
    `counted` has the units of each size that a mesh may be made of, and single workers. `spare`,
    `leaving` and `kept_out` name the nodes in that state, longest there first, `in_states` the
    workers in each: nothing that is asked of an event looks at all of them.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    in_states: dict[WorkerState, dict[str, None]] = field(default_factory=_nobody)
    counted: dict[int, UnitCount] = field(default_factory=_single)
    num_used: int = 0
    num_ready_nodes: int = 0
    spare: dict[str, None] = field(default_factory=dict)
    leaving: dict[str, None] = field(default_factory=dict)
    kept_out: dict[str, None] = field(default_factory=dict)
    next_number: int = 0

    @property
    def num_idle(self) -> int:
        return len(self.in_states[WorkerState.IDLE])

    @property
    def num_members(self) -> int:
        return len(self.in_states[WorkerState.MEMBER])

    @property
    def num_starting(self) -> int:
        return len(self.in_states[WorkerState.STARTING])

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
        node.state, node.warm = state, node.warm and state is NodeState.USED
        self._count(node, 1)

    def remove_node(self, name: str) -> list[Worker]:
        """The workers that were lost with the node."""
        lost = self.on(name)
        node = self.nodes.pop(name)
        self._count(node, -1)
        for worker in lost:
            self.remove(worker)
        return lost

    def on(self, node: str) -> list[Worker]:
        """Cost: linear in the workers there."""
        return [self.workers[name] for name in self.nodes[node].workers]

    def alone_on_host(self, node: Node) -> bool:
        """Whether no other node of the same host is there. Cost: linear in the nodes."""
        others = (other for other in self.nodes.values() if other is not node)
        return all(other.host != node.host for other in others)

    def start(self, node_name: str) -> Worker:
        node = self.nodes[node_name]
        number = self.next_number
        slot = heapq.heappop(node.free_slots) if node.free_slots else node.next_slot
        node.next_slot = max(node.next_slot, slot + 1)
        worker = Worker(name=f"worker-{number}", node=node_name, number=number, slot=slot)
        self.next_number += 1
        self.workers[worker.name] = worker
        self._change(worker, None, worker.state)
        return worker

    def move(self, worker: Worker, state: WorkerState) -> None:
        self._change(worker, worker.state, state)
        worker.state = state

    def remove(self, worker: Worker) -> None:
        del self.workers[worker.name]
        self._change(worker, worker.state, None)
        if worker.node in self.nodes:
            heapq.heappush(self.nodes[worker.node].free_slots, worker.slot)

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
            (*_need(node.num_workers, node.slots, size), not node.head, node.name)
            for node in self.nodes.values()
            if node.state is NodeState.USED and node.room
        ]
        heapq.heapify(free)
        chosen: list[str] = []
        taken: Counter[str] = Counter()
        while free and (missing > 0 or groups > 0):
            useless, _, num_workers, not_head, name = heapq.heappop(free)
            node = self.nodes[name]
            if useless and missing <= 0:
                break
            chosen.append(name)
            taken[name] += 1
            missing -= 1
            groups -= (num_workers + 1) % size == 0
            if taken[name] < node.room:
                need = _need(num_workers + 1, node.slots, size)
                heapq.heappush(free, (*need, not_head, name))
        return chosen

    def unmanned(self, least: int, chosen: Collection[str]) -> list[str]:
        """Nodes in use with no worker, none `chosen` either, until `least` nodes have some."""
        if self.num_ready_nodes >= least:
            return []
        used = [node for node in self.nodes.values() if node.state is NodeState.USED]
        empty = [one.name for one in used if not one.num_workers and one.name not in chosen]
        return empty[: max(0, least - (len(used) - len(empty)))]

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
        away = [worker for name in self.leaving for worker in self.on(name)]
        here = len(self.workers) - len(away)
        missing = min(wanted, self.num_slots) - here
        if unit_size == 1:
            missing += len(self.in_states[WorkerState.ENDING])
            missing -= sum(worker.state is WorkerState.ENDING for worker in away)
        return min(missing, self.num_slots - here)

    def in_state(self, state: WorkerState) -> list[Worker]:
        """The oldest first. Cost: n log n for those in that state."""
        found = [self.workers[name] for name in self.in_states[state]]
        return sorted(found, key=lambda worker: worker.number)

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
        known = {
            NodeState.SPARE: self.spare,
            NodeState.LEAVING: self.leaving,
            NodeState.QUARANTINED: self.kept_out,
        }
        for state, names in known.items():
            if node.state is state and sign > 0:
                names[node.name] = None
            elif node.state is state:
                del names[node.name]

    def _change(
        self, worker: Worker, before: WorkerState | None, after: WorkerState | None
    ) -> None:
        """The worker goes from one state to another: None before it starts and once it is gone."""
        if before is not None:
            del self.in_states[before][worker.name]
        if after is not None:
            self.in_states[after][worker.name] = None
        ready = (after in READY) - (before in READY)
        starting = (after is WorkerState.STARTING) - (before is WorkerState.STARTING)
        node = self.nodes.get(worker.node)
        stays = before is not None and after is not None and not ready and not starting
        if node is None or stays:  # as when a whole mesh parks
            return
        self._count_slots(node, -1)
        was_ready = node.num_ready > 0
        if before is None:
            node.workers[worker.name] = None
        if after is None:
            del node.workers[worker.name]
        node.num_ready += ready
        node.num_starting += starting
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
