"""Signs of life and death, turned into events: Ray's deaths, agents' beats, nodes that come and go.

Three sources, the fastest wins: the pending reference of an actor's `live` call fails within
milliseconds of its process' death; an agent's missing beats tell of a dead host; Ray's own list of
nodes is the backstop. A node that was lost once is never offered again: its id is final. Ray also
knows which nodes are about to leave.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import ray

from remesh.actors.cluster.private_ray import draining_nodes
from remesh.actors.node.offers import Offers, Room
from remesh.actors.node.tracebacks import tail
from remesh.actors.orders import HEAD
from remesh.orchestrator.control.words.events import (
    Event,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeSilent,
    VaultLost,
    WorkerFrozen,
    WorkerLost,
)
from remesh.orchestrator.job.timers import Timers
from remesh.parallel.threads import heard_thread

NODES_EVERY_S = 0.5
DOMAINS = ("remesh/domain", "ray.io/gpu-domain")


class Watch:
    """`post` is called from several threads; `died_at_s` knows the moment of deaths on order.

    What fails to look is announced, and looks again.
    """

    def __init__(
        self,
        *,
        post: Callable[[Event], None],
        died_at_s: Callable[[str], float | None],
        timers: Timers,
        announce: Callable[[str], None],
        offers: Offers,
    ) -> None:
        self._post = post
        self._announce = announce
        self._died_at_s = died_at_s
        self._timers = timers
        self._offers = offers
        self._lock = threading.Lock()
        self._rooms: dict[str, Room] = {}
        self._beats: dict[str, float] = {}
        self._silent: set[str] = set()
        self._offered: set[str] = set()
        self._lost: set[str] = set()
        self._frozen: set[str] = set()
        self._draining: set[str] = set()
        self._released: set[str] = set()
        self._looked_s = time.monotonic()
        self._ended = threading.Event()

    def start(self) -> None:
        self._look_at_nodes()
        for loop, every_s in (
            (self._look_at_beats, self._timers.silent_s / 5),
            (self._look_at_nodes, NODES_EVERY_S),
        ):
            heard_thread(partial(self._repeat, loop, every_s), name=loop.__name__).start()

    def end(self) -> None:
        self._ended.set()

    def resume(self, *, offered: Iterable[str], gone: Iterable[str], heard: Iterable[str]) -> None:
        """Take over from another watch. Silence counts once the `heard` ones had time to beat."""
        with self._lock:
            self._offered.update(offered, gone)
            self._lost.update(gone)
            first_s = time.monotonic() + self._timers.adopt_s(len(self._offered))
            self._beats.update(dict.fromkeys(heard, first_s))

    def worker(self, worker: str, life: Any) -> None:
        """Report the end of this worker's `live` call as its loss."""

        def lost(future: Any) -> None:
            error = future.exception()
            self._post(
                WorkerLost(
                    worker=worker,
                    cause=_cause(error),
                    died_at_s=self._died_at_s(worker),
                    traceback=_told_by(error),
                )
            )

        life.future().add_done_callback(lost)

    def vault(self, node: str, life: Any) -> None:
        """Report the end of this vault's `live` call as its loss."""
        life.future().add_done_callback(lambda _: self._post(VaultLost(node=node)))

    def agent(self, node: str) -> None:
        """Expect this node's beats, the first one once its agent has had time to start."""
        with self._lock:
            self._released.discard(node)
            self._beats[node] = time.monotonic() + self._timers.start_s()

    def release(self, node: str) -> None:
        """Its agent ends: no beat is expected from it, and a late one renews no lease."""
        with self._lock:
            self._released.add(node)
            self._beats.pop(node, None)

    def room(self, node: str) -> Room | None:
        """What a node offered, None if it has gone before this watch began."""
        return self._rooms.get(node)

    def beat(self, node: str, frozen: tuple[tuple[str, float], ...]) -> int:
        """An agent's sign of life, with the workers that give none; how many nodes beat.

        0, which renews no lease, for a node that was given up or let go.
        """
        with self._lock:
            if node in self._lost or node in self._released:
                return 0
            self._beats[node] = time.monotonic()
            self._silent.discard(node)
            news = [(worker, age_s) for worker, age_s in frozen if worker not in self._frozen]
            self._frozen.update(worker for worker, _ in news)
        for worker, age_s in news:
            self._post(WorkerFrozen(worker=worker, silent_s=age_s))
        return len(self._beats)

    def lose(self, node: str, cause: str) -> None:
        """From now on its beats renew no lease, so that what is left there ends."""
        with self._lock:
            self._beats.pop(node, None)
            known = node in self._offered and node not in self._lost
            self._lost.add(node)
        if known:
            self._post(NodeLost(node=node, cause=cause, died_at_s=self._died_at_s(node)))

    def _repeat(self, loop: Callable[[], None], every_s: float) -> None:
        told = ""
        while not self._ended.wait(every_s):
            try:
                loop()
            except Exception as error:
                logging.getLogger(__name__).exception("%s failed", loop.__name__)
                text = f"{type(error).__name__}: {error}".partition("\n")[0]
                if text != told:
                    self._announce(f"the controller could not look around, and tries again: {text}")
                told = text

    def _look_at_beats(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._looked_s > self._timers.silent_s:
                # This process stood still itself: the beats that it missed prove nothing.
                self._beats = {node: max(beat, now) for node, beat in self._beats.items()}
            self._looked_s = now
            ages = {node: now - beat for node, beat in self._beats.items()}
            silent_s = self._timers.node_silent_s(len(ages))
            lost_s = self._timers.node_lost_s(len(ages))
            late = {node for node, age_s in ages.items() if age_s > silent_s}
            news = late - self._silent
            self._silent |= news
        for node in news:
            self._post(NodeSilent(node=node, silent_s=ages[node]))
        for node in late:
            if ages[node] > lost_s:
                self.lose(node, f"no sign of life for {ages[node]:.1f} s")

    def _look_at_nodes(self) -> None:
        for entry in ray.nodes():
            node = self._name(entry)
            resources = entry["Resources"]
            if not entry["Alive"]:
                self.lose(node, "Ray lost it")
            elif room := self._offers.room(entry):
                self._rooms[node] = room
                joined = NodeJoined(
                    node=node,
                    slots=room.slots,
                    domain=_domain(entry.get("Labels") or {}),
                    head=HEAD in resources,
                    host=entry["NodeManagerAddress"],
                )
                self._offer(joined)
        self._look_at_drains()

    def _look_at_drains(self) -> None:
        draining = draining_nodes()
        for node, room in list(self._rooms.items()):
            if room.node_id in draining and node not in self._draining:
                self._draining.add(node)
                deadline_s = draining[room.node_id]
                self._post(NodeDraining(node=node, cause="Ray drains it", deadline_s=deadline_s))

    @staticmethod
    def _name(entry: dict[str, Any]) -> str:
        """A node's address and the start of its id: short, and another one after a restart."""
        return f"{entry['NodeManagerAddress']}-{entry['NodeID'][:6]}"

    def _offer(self, joined: NodeJoined) -> None:
        if joined.node not in self._offered:
            self._offered.add(joined.node)
            self._post(joined)


def _domain(labels: Mapping[str, str]) -> str:
    """What fails or is linked together: ranks of a domain are neighbours."""
    return next((labels[key] for key in DOMAINS if key in labels), "")


def _death(error: ray.exceptions.RayActorError) -> str:
    """Ray's text for a constructor that failed ends with the failure."""
    text = str(error).strip()
    failed_to_start = "creation task" in text
    return f"it could not start: {text.splitlines()[-1]}" if failed_to_start else "its process died"


def _told_by(error: BaseException | None) -> str:
    """The traceback that Ray passes on, if the actor itself raised; a killed one says nothing."""
    raised = isinstance(error, ray.exceptions.RayTaskError) or "creation task" in str(error)
    return tail(str(error)) if raised else ""


def _cause(error: BaseException | None) -> str:
    """One line for the loss of an actor."""
    if error is None:
        return "its process ended"
    if isinstance(error, ray.exceptions.RayTaskError):
        error = error.cause
    elif isinstance(error, ray.exceptions.RayActorError):
        return _death(error)
    return f"{type(error).__name__}: {error}".partition("\n")[0]
