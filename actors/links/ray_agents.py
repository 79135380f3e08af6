"""Agents as actors of Ray: started, found again, spoken to. Nothing here waits but `found`.

Some are begun before the controller is there, so that both load at the same time: it finds them by
name as it asks for one. Those that it never asks for end by themselves, with the lease.

They are detached and named, so that they outlive their controller for the length of their lease,
pinned to their node by its id, and hold the processors of its ranks. Ray never restarts one, which
would hide its loss. A name is used once: one that ends may hold its own for a moment longer.
"""

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import ray
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from remesh.actors.agent.agent import Agent
from remesh.actors.agent.words import NodeOrders
from remesh.actors.node.lives import LIFE, LIFE_THREADS
from remesh.actors.node.offers import Room
from remesh.actors.orders import NAMESPACE, RunSpec

CONTROL = "control"
ASKED = "asked"  # by users, which holds up no order
AGENT = "-agent-"  # in the names of actors
EARLY = "0.1"  # the age of one that was begun before there was a controller


class RayAgent:
    """One agent. `life` is a pending call, which fails within milliseconds of its death."""

    def __init__(self, actor: Any, life: Any) -> None:
        self._actor = actor
        self._life = life

    def when_over(self, tell: Callable[[str], object]) -> None:
        """`tell` hears once how it ended, in one line, from another thread."""

        def over(life: "Future[Any]") -> None:
            tell(_cause(life.exception()))

        self._life.future().add_done_callback(over)

    def take(self, orders: NodeOrders, newer: Callable[[int], object]) -> None:
        answer = self._actor.take.options(concurrency_group=CONTROL).remote(orders)

        def answered(taken: "Future[int]") -> None:
            if taken.exception() is None and taken.result() > orders.incarnation:
                newer(taken.result())

        answer.future().add_done_callback(answered)

    def stacks(self, workers: Iterable[str], limit_s: float) -> dict[str, str]:
        """Empty if it does not answer in time."""
        asked = self._actor.stacks.options(concurrency_group=ASKED).remote(tuple(workers))
        with suppress(ray.exceptions.RayError):  # its node is dead or frozen
            return dict(ray.get(asked, timeout=limit_s))
        return {}

    def kill(self) -> None:
        """End it though it may not run yet, and what it has started with it."""
        ray.kill(self._actor)


class RayAgents:
    """Those of one start of a run."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._pickled = pickle.dumps(spec)
        self._started = 0
        self._not_early: set[str] = set()

    def begin_early(self, node: str, room: Room) -> None:
        """One that waits for a controller to ask for it."""
        self._create(node, room, EARLY)

    def start(self, node: str, room: Room) -> RayAgent:
        """It holds the processors of as many ranks as the run may have there."""
        if node not in self._not_early:
            self._not_early.add(node)
            with suppress(ValueError):  # none was begun, or it has ended
                return _found(ray.get_actor(f"{self._prefix}{node}-{EARLY}", NAMESPACE))
        self._started += 1
        return self._create(node, room, f"{self._spec.incarnation}.{self._started}")

    def _create(self, node: str, room: Room, age: str) -> RayAgent:
        incarnation = int(age.partition(".")[0])
        wanted = self._spec.max_members + self._spec.job.elastic.spares
        actor = (
            ray.remote(concurrency_groups={CONTROL: 1, LIFE: LIFE_THREADS, ASKED: 1})(Agent)
            .options(
                name=f"{self._prefix}{node}-{age}",
                namespace=NAMESPACE,
                lifetime="detached",
                max_restarts=0,
                num_cpus=min(room.slots, wanted),
                scheduling_strategy=NodeAffinitySchedulingStrategy(room.node_id, soft=False),
            )
            .remote(self._spec.run, node, incarnation, self._pickled)
        )
        return RayAgent(actor, actor.live.remote())

    def found(self) -> dict[str, list[RayAgent]]:
        """Those that an earlier controller has started, by node, the newest last.

        Cost: one question for all, and one for each.
        """
        names: dict[str, list[str]] = defaultdict(list)
        for entry in list_named_actors(all_namespaces=True):
            name = entry["name"]
            if entry["namespace"] == NAMESPACE and name.startswith(self._prefix):
                names[name.removeprefix(self._prefix).rpartition("-")[0]].append(name)
        found: dict[str, list[RayAgent]] = defaultdict(list)
        for node, own in names.items():
            for name in sorted(own, key=_age):
                with suppress(ValueError):  # gone by now
                    found[node].append(_found(ray.get_actor(name, NAMESPACE)))
        return dict(found)

    @property
    def _prefix(self) -> str:
        return f"remesh-{self._spec.run}{AGENT}"


def _found(actor: Any) -> RayAgent:
    return RayAgent(actor, actor.outlive.options(concurrency_group=LIFE).remote())


def _age(name: str) -> tuple[int, ...]:
    """(incarnation, number): what follows the last dash of its name."""
    return tuple(int(number) for number in name.rpartition("-")[2].split("."))


def _cause(error: BaseException | None) -> str:
    if error is None:
        return "ended"
    if isinstance(error, ray.exceptions.RayActorError):
        text = str(error).strip()
        if "creation task" in text:  # whose text ends with the failure
            return f"could not start: {text.splitlines()[-1]}"
        return "died"
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "was ended by Ray, because its node ran low on memory"
    return f"ended with {type(error).__name__}: {error}".partition("\n")[0]
