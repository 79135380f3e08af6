"""The run's actors on the cluster: agents and workers are started, addressed and ended here.

They are detached and named, so that they outlive their controller for the length of their lease.
An agent is pinned to its node by the node's id, a worker by the node's placement group. A worker is
never restarted by Ray, which would hide its loss. What a controller is to start may be there
already, started by the controller before it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from remesh.actors.node.agent import Agent
from remesh.actors.node.lives import LIFE, LIFE_THREADS
from remesh.actors.node.offers import Room
from remesh.actors.node.placement_groups import Groups
from remesh.actors.orders import NAMESPACE, RunSpec
from remesh.actors.vault.vault_actor import VaultActor
from remesh.actors.worker.worker_actor import WorkerActor

CONTROL = "control"
ASKED = "asked"  # by users, which holds up no order
END_LIMIT_S = 5.0


class Pool:
    """Handles by name. Calls return at once; what becomes of the actors is Watch's to tell."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._agents: dict[str, Any] = {}
        self._agent_lives: dict[str, Any] = {}
        self._leaving: dict[str, Any] = {}
        self._workers: dict[str, Any] = {}
        self._vaults: dict[str, Any] = {}
        self._groups = Groups(spec)
        self._ended = False

    def start_agent(self, node: str, node_id: str) -> bool:
        """Whether it was not there yet. It comes with the first worker and leaves with the last."""
        if node in self._agents or self._ended:
            return False
        if node in self._leaving:  # it still clears up what the new one is about to make
            ray.wait([self._leaving.pop(node)], timeout=END_LIMIT_S)
        affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
        agent = self._start(Agent, f"agent-{node}", affinity, {"num_cpus": 0})
        self._agents[node] = agent.remote(self._spec, node)
        self._agent_lives[node] = self._agents[node].live.remote()
        return True

    def adopt_agent(self, node: str) -> None:
        """Take over the agent that an earlier controller started, if it is there."""
        agent = self._find(f"agent-{node}")
        if agent is not None:
            self._agents[node], self._agent_lives[node] = agent, _outlive(agent)
        self._groups.adopt(node)

    def start_vault(self, node: str, node_id: str) -> Any:
        """The vault's life, as of a worker. None if it is there already, or nobody looks after it.

        It ends with the node's agent.
        """
        if node in self._vaults or node not in self._agents or self._ended:
            return None
        affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
        vault = self._start(VaultActor, f"vault-{node}", affinity, {"num_cpus": 0})
        self._vaults[node] = vault.remote(self._spec, node)
        return self._vaults[node].live.remote()

    def adopt_vault(self, node: str) -> Any:
        """The life of a vault that an earlier controller started. None if it is gone."""
        vault = self._find(f"vault-{node}")
        if vault is None:
            return None
        self._vaults[node] = vault
        return _outlive(vault)

    def tell_vaults(self, nodes: Iterable[str], method: str, *args: Any) -> None:
        """Call a control method of the vaults of these nodes."""
        for node in nodes:
            if node in self._vaults:
                _control(self._vaults[node], method, *args)

    def forget_vault(self, node: str) -> None:
        """A lost vault's process is gone, or has failed and must go."""
        if node in self._vaults:
            ray.kill(self._vaults.pop(node))

    def release(self, node: str) -> None:
        """End the agent, and with it whatever is left there; of a dead node nothing is."""
        self.forget_vault(node)
        self._groups.remove(node)
        if node in self._agents:
            _control(self._agents.pop(node), "end")
            self._leaving[node] = self._agent_lives.pop(node)

    def start_worker(self, worker: str, node: str, room: Room) -> Any:
        """The worker's life: a reference that fails when its process dies. None if it is known."""
        if worker in self._workers or self._ended:
            return None
        life = self.adopt_worker(worker)
        if life is not None:
            return life
        place = self._groups.strategy(node, room)
        actor = self._start(WorkerActor, worker, place, {"num_cpus": 1})
        handle = actor.remote(self._spec, worker, node)
        self._workers[worker] = handle
        return handle.live.remote()

    def adopt_worker(self, worker: str) -> Any:
        """The life of a worker that an earlier controller started. None if it is gone."""
        handle = self._find(worker)
        if handle is None:
            return None
        self._workers[worker] = handle
        return _outlive(handle)

    def tell(self, workers: Iterable[str], method: str, *args: Any) -> None:
        """Call a control method of each of the workers."""
        for name in workers:
            if name in self._workers:
                _control(self._workers[name], method, *args)

    def stacks(self, workers: Mapping[str, Sequence[str]], limit_s: float) -> dict[str, str]:
        """The stacks of these workers by node, as far as their agents tell within the limit."""
        deadline_s = time.monotonic() + limit_s
        asked = [
            self._agents[node].stacks.options(concurrency_group=ASKED).remote(tuple(names))
            for node, names in workers.items()
            if node in self._agents
        ]
        told: dict[str, str] = {}
        for answer in asked:
            with suppress(ray.exceptions.RayError):  # its node is dead or frozen
                told |= ray.get(answer, timeout=max(0.0, deadline_s - time.monotonic()))
        return told

    def end_worker(self, worker: str, node: str) -> None:
        """Kill by pid through the agent, which reaches a frozen process, and through Ray."""
        if node in self._agents:
            _control(self._agents[node], "kill", worker)
        if worker in self._workers:
            ray.kill(self._workers[worker])

    def forget_worker(self, worker: str) -> None:
        """A lost worker's process is gone, or has failed and must go."""
        if worker in self._workers:
            ray.kill(self._workers.pop(worker))

    def end(self) -> None:
        """End everything; the agents take their workers along. Waits for the agents, bounded."""
        self._ended = True
        # Copies: the handling thread may start an actor meanwhile.
        for agent in list(self._agents.values()):
            _control(agent, "end")
        for actor in (*self._workers.values(), *self._vaults.values()):
            ray.kill(actor)
        lives = [*self._agent_lives.values(), *self._leaving.values()]
        if lives:
            ray.wait(lives, num_returns=len(lives), timeout=END_LIMIT_S)
        self._groups.remove_all()

    def _actor_name(self, name: str) -> str:
        return f"remesh-{self._spec.run}-{name}"

    def _find(self, name: str) -> Any:
        """The living actor of this name, None if there is none."""
        try:
            return ray.get_actor(self._actor_name(name), NAMESPACE)
        except ValueError:
            return None

    def _start(self, cls: type, name: str, place: Any, resources: dict[str, int]) -> Any:
        return ray.remote(concurrency_groups={CONTROL: 2, LIFE: LIFE_THREADS, ASKED: 1})(
            cls
        ).options(
            name=self._actor_name(name),
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            scheduling_strategy=place,
            **resources,
        )


def _outlive(actor: Any) -> Any:
    return actor.outlive.options(concurrency_group=LIFE).remote()


def _control(actor: Any, method: str, *args: Any) -> None:
    getattr(actor, method).options(concurrency_group=CONTROL).remote(*args)
