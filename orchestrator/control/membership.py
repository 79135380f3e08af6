"""Who is there: nodes, the workers on them, and who of them makes up a mesh.

Workers are started evenly over the nodes until members and spares are complete or the nodes are
full; a dead worker's place is filled again on any living node with room. A mesh takes first who
holds the newest state, then spares, those on a node that has just lost a member last. Ranks are
dealt in the order (domain, head first, node, worker number).
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


class WorkerState(StrEnum):
    STARTING = "starting"
    IDLE = "idle"
    MEMBER = "member"
    ENDING = "ending"


@dataclass(slots=True, kw_only=True)
class Node:
    """`hurt_in` is the newest generation that lost a member here."""

    name: str
    slots: int
    domain: str
    head: bool
    num_workers: int = 0
    hurt_in: int = 0


@dataclass(slots=True, kw_only=True)
class Worker:
    """`held` is the (generation, step) whose state the worker held when it was last parked."""

    name: str
    node: str
    number: int
    state: WorkerState = WorkerState.STARTING
    pid: int = 0
    held: tuple[int, int] | None = None


@dataclass(slots=True, kw_only=True)
class Roster:
    """Living nodes and workers by name. Names of workers are never used twice."""

    nodes: dict[str, Node] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    counts: dict[WorkerState, int] = field(default_factory=lambda: dict.fromkeys(WorkerState, 0))
    num_slots: int = 0
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
        self.num_slots += node.slots

    def remove_node(self, name: str) -> list[Worker]:
        """The workers that were lost with the node."""
        node = self.nodes.pop(name)
        self.num_slots -= node.slots
        lost = [worker for worker in self.workers.values() if worker.node == name]
        for worker in lost:
            self.remove(worker)
        return lost

    def start(self, node_name: str) -> Worker:
        node = self.nodes[node_name]
        number = self.next_number
        worker = Worker(name=f"worker-{number}", node=node_name, number=number)
        self.next_number += 1
        node.num_workers += 1
        self.workers[worker.name] = worker
        self.counts[worker.state] += 1
        return worker

    def move(self, worker: Worker, state: WorkerState) -> None:
        self.counts[worker.state] -= 1
        self.counts[state] += 1
        worker.state = state

    def remove(self, worker: Worker) -> None:
        del self.workers[worker.name]
        self.counts[worker.state] -= 1
        if worker.node in self.nodes:
            self.nodes[worker.node].num_workers -= 1

    def places(self, wanted: int) -> list[str]:
        """Nodes for new workers until `wanted` live. One that is being ended still fills a slot."""
        missing = min(wanted, self.num_slots) - len(self.workers)
        missing += self.counts[WorkerState.ENDING]
        missing = min(missing, self.num_slots - len(self.workers))
        if missing <= 0:
            return []
        free = [
            (node.num_workers, not node.head, node.name, node.slots)
            for node in self.nodes.values()
            if node.num_workers < node.slots
        ]
        heapq.heapify(free)
        chosen = []
        for _ in range(missing):
            num_workers, not_head, name, slots = heapq.heappop(free)
            chosen.append(name)
            if num_workers + 1 < slots:
                heapq.heappush(free, (num_workers + 1, not_head, name, slots))
        return chosen

    def choose(
        self, limit: int, held_step: Callable[[Worker], int], generation: int
    ) -> list[Worker]:
        """At most `limit` idle workers in the order of their ranks to be.

        `held_step` is -1 for a worker without state; `generation` is the one that has just ended.
        """
        idle = [worker for worker in self.workers.values() if worker.state is WorkerState.IDLE]
        idle.sort(key=lambda worker: (-held_step(worker), worker.number))
        depth: dict[str, int] = {}
        ordered = []
        for worker in idle:
            depth[worker.node] = depth.get(worker.node, 0) + 1
            spare = held_step(worker) < 0
            hurt = spare and self.nodes[worker.node].hurt_in == generation > 0
            ordered.append((-held_step(worker), hurt, depth[worker.node], worker.number, worker))
        ordered.sort(key=lambda entry: entry[:4])
        chosen = [entry[4] for entry in ordered[:limit]]
        return sorted(chosen, key=self._rank_order)

    def _rank_order(self, worker: Worker) -> tuple[str, bool, str, int]:
        node = self.nodes[worker.node]
        return (node.domain, not node.head, node.name, worker.number)
