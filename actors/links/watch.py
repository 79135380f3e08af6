"""Signs of life and death of nodes, turned into events: agents' beats and ends, and Ray's list.

Four sources, the fastest wins: the pending call of an agent fails within milliseconds of its
process' death; where Ray's own processes there died too, its door refuses who knocks; missing beats
tell of a dead host; Ray's own list of nodes is the backstop. Ray also knows which nodes are about
to leave.

A node that was given up is not gone for good, as long as Ray counts it: once its agent is over, and
with it all that the run had there, it is offered again, and its host's losses decide when it is
used. Until then it is told to clear itself, and what it says counts for nothing.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import ray

from remesh.actors.agent.words import NodeWord
from remesh.actors.cluster.private_ray import draining_nodes
from remesh.actors.links.node_beats import Beats
from remesh.actors.node.offers import Offers, Room
from remesh.actors.orders import HEAD
from remesh.orchestrator.control.words.events import (
    Event,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeRefused,
    NodeSilent,
)
from remesh.orchestrator.job.timers import Timers
from remesh.parallel.threads import heard_thread

NODES_EVERY_S = 0.5
DOMAINS = ("remesh/domain", "ray.io/gpu-domain")


class _Stand(Enum):
    OFFERED = auto()  # it may be used
    USED = auto()  # there is an agent, or is about to be
    RELEASED = auto()  # its agent is to end
    LOST = auto()  # it was given up; something of the run may be left there
    GONE = auto()  # Ray has given it up, for good


@dataclass(slots=True)
class _Seen:
    """`lives` counts its agents that are not over. `has_beaten` is since the newest began."""

    stand: _Stand = _Stand.OFFERED
    room: Room | None = None
    lives: int = 0
    has_beaten: bool = False
    begun_s: float = 0.0
    drains: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a node is answered: how many beat, whether its lease is renewed, whether it is to end
    all that it has of the run.
    """

    num_nodes: int
    leased: bool
    clear: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodes:
    """What Ray tells of the cluster, each asked every half second.

    Raises: what Ray raises, while its head is away.
    """

    nodes: Callable[[], Sequence[Mapping[str, Any]]] = ray.nodes
    draining: Callable[[], Mapping[str, float | None]] = draining_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearers:
    """`post` is called from several threads, never again for a node before the one before is
    through; `announce` for what fails to look. `died_at_s` knows the moment of deaths on order,
    `holds_up` whether a mesh that is being left waits for a node.
    """

    post: Callable[[Event], None]
    announce: Callable[[str], None]
    died_at_s: Callable[[str], float | None]
    holds_up: Callable[[str], bool]


class Watch:
    """What fails to look is announced, and looks again."""

    def __init__(
        self,
        timers: Timers,
        offers: Offers,
        told: Hearers,
        *,
        cluster: RayNodes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = told.post
        self._announce = told.announce
        self._died_at_s = told.died_at_s
        self._holds_up = told.holds_up
        self._timers = timers
        self._offers = offers
        self._cluster = cluster or RayNodes()
        self._clock = clock
        self._lock = threading.Lock()
        self._beats = Beats(timers)
        self._nodes: dict[str, _Seen] = {}
        self._ended = threading.Event()

    def start(self, look: Callable[[], object]) -> None:
        """`look` is called before silence is held against anybody."""
        self.look_at_nodes()

        def beats() -> None:
            look()
            self.look_at_beats()

        for name, loop, every_s in (
            ("beats", beats, self._timers.silent_s / 5),
            ("nodes", self.look_at_nodes, NODES_EVERY_S),
        ):
            heard_thread(partial(self.repeat, loop, every_s), name=name).start()

    def end(self) -> None:
        self._ended.set()

    def resume(
        self,
        *,
        offered: Collection[str],
        gone: Iterable[str],
        used: Iterable[str],
        there: Collection[str],
    ) -> None:
        """Take over from another watch: of the nodes that were `used` agents should be `there`.

        Silence counts once they had time to beat.
        """
        with self._lock:
            for node in gone:
                self._nodes[node] = _Seen(stand=_Stand.LOST)
            for node in offered:
                self._nodes[node] = _Seen()
            for node in there:
                self._nodes.setdefault(node, _Seen(stand=_Stand.LOST)).lives = 1
            using = {*used, *there}.intersection(offered)
            for node in using:
                self._nodes[node].stand = _Stand.USED
            self._beats.expect(using, self._clock() + self._timers.adopt_s(len(using)))
            for node in sorted(using.difference(there)):
                self._lose(node, "its agent ended while the controller was away")

    def begins(self, node: str) -> None:
        """An agent is started there: its beats are expected once it has had time to start."""
        with self._lock:
            found = self._nodes.setdefault(node, _Seen())
            found.lives += 1
            found.has_beaten, found.begun_s = False, self._clock()
            if found.stand in (_Stand.OFFERED, _Stand.RELEASED):
                found.stand = _Stand.USED
                self._beats.expect([node], self._clock() + self._timers.start_s())

    def over(self, node: str, cause: str) -> None:
        """An agent has ended. If nobody wanted it to, the node is lost, with all that was there.

        Once the watch has ended all are to end: that is no news.
        """
        with self._lock:
            found = self._nodes[node]
            found.lives -= 1
            if found.stand is _Stand.USED and not found.lives and not self._ended.is_set():
                self._lose(node, f"its agent {cause}")

    def release(self, node: str) -> None:
        """Its agent ends: no beat is expected from it, and a late one renews no lease."""
        with self._lock:
            self._beats.forget(node)
            if (found := self._nodes.get(node)) and found.stand is _Stand.USED:
                found.stand = _Stand.RELEASED

    def room(self, node: str) -> Room | None:
        """What a node offers, None if nobody has seen it yet, or it is lost."""
        with self._lock:
            found = self._nodes.get(node)
            return found.room if found and found.stand not in (_Stand.LOST, _Stand.GONE) else None

    def beat(self, word: NodeWord) -> Word:
        """A sign of life of a node, and what it is answered."""
        with self._lock:
            found = self._nodes.get(word.node)
            if found is None or found.stand in (_Stand.LOST, _Stand.GONE):
                return Word(num_nodes=len(self._beats), leased=False, clear=True)
            if found.stand is not _Stand.USED:
                return Word(num_nodes=len(self._beats), leased=False)
            found.has_beaten = True
            told = self._beats.beat(word.node, self._clock(), word.stood_still_s)
            return Word(num_nodes=told, leased=True)

    def refused(self, node: str, broken_s: float) -> bool:
        """The process of its agent is not there, by the kernel's word: news where it is waited for.

        Whether it is to be asked again, since that may be so later.
        """
        is_news = self._holds_up(node)
        with self._lock:
            found = self._nodes.get(node)
            if found is None or found.stand is not _Stand.USED:
                return False
            if is_news:
                self._post(NodeRefused(node=node, broken_s=broken_s))
            return True

    def lose(self, node: str, cause: str) -> None:
        """Give it up: its beats renew no lease, so that what is left there ends."""
        with self._lock:
            self._lose(node, cause)

    def never_came(self, node: str) -> bool:
        """Whether its newest agent has never beaten: it may not run yet."""
        with self._lock:
            found = self._nodes.get(node)
            return found is not None and found.lives > 0 and not found.has_beaten

    def late_starts(self, after_s: float) -> dict[str, Room]:
        """Nodes whose agents have not come within so long."""
        with self._lock:
            return {
                node: found.room
                for node, found in self._nodes.items()
                if found.room is not None
                and found.stand is _Stand.USED
                and found.lives
                and not found.has_beaten
                and self._clock() - found.begun_s > after_s
            }

    def excuse(self, for_s: float) -> None:
        """Nobody listened for so long."""
        with self._lock:
            self._beats.excuse(for_s)

    def repeat(self, loop: Callable[[], None], every_s: float) -> None:
        """Call it again and again, whatever it raises, until the watch ends."""
        told = ""
        while not self._ended.wait(every_s):
            try:
                loop()
            except Exception as error:
                logging.getLogger(__name__).exception("the watch failed to look")
                text = f"{type(error).__name__}: {error}".partition("\n")[0]
                if text != told:
                    self._announce(f"the controller could not look around, and tries again: {text}")
                told = text

    def look_at_beats(self) -> None:
        with self._lock:
            late = self._beats.late(self._clock())
            for node, silent_s in late.silent.items():
                self._post(NodeSilent(node=node, silent_s=silent_s))
            for node, silent_s in late.lost.items():
                since_s = time.time() - silent_s
                self._lose(node, f"no sign of life for {silent_s:.1f} s", since_s)

    def look_at_nodes(self) -> None:
        """Raises: what Ray raises."""
        for entry in self._cluster.nodes():
            if not entry["Alive"]:
                self._is_gone(_name(entry))
            elif room := self._offers.room(entry):
                self._is_there(joined(entry, room), room)
        self._look_at_drains()

    def _is_there(self, joined: NodeJoined, room: Room) -> None:
        with self._lock:
            found = self._nodes.get(joined.node)
            back = found is not None and found.stand is _Stand.LOST and not found.lives
            if found is None or back:
                found = self._nodes[joined.node] = _Seen()
                self._post(joined)
            found.room = room

    def _is_gone(self, node: str) -> None:
        with self._lock:
            if found := self._nodes.get(node):
                self._lose(node, "Ray lost it")
                found.stand = _Stand.GONE

    def _lose(self, node: str, cause: str, since_s: float | None = None) -> None:
        """Under the lock, so that whoever offers it again is later."""
        self._beats.forget(node)
        found = self._nodes.get(node)
        if found and found.stand not in (_Stand.LOST, _Stand.GONE):
            found.stand = _Stand.LOST
            died_at_s = self._died_at_s(node) or since_s
            self._post(NodeLost(node=node, cause=cause, died_at_s=died_at_s))

    def _look_at_drains(self) -> None:
        draining = self._cluster.draining()
        with self._lock:
            for node, found in self._nodes.items():
                if found.room and found.room.node_id in draining and not found.drains:
                    found.drains = True
                    at_s = draining[found.room.node_id]
                    self._post(NodeDraining(node=node, cause="Ray drains it", deadline_s=at_s))


def _name(entry: Mapping[str, Any]) -> str:
    """A node's address and the start of its id: short, and another one after a restart."""
    return f"{entry['NodeManagerAddress']}-{entry['NodeID'][:6]}"


def joined(entry: Mapping[str, Any], room: Room) -> NodeJoined:
    """The news of a node, as Ray lists it."""
    return NodeJoined(
        node=_name(entry),
        slots=room.slots,
        domain=domain_of(entry.get("Labels") or {}),
        head=HEAD in entry["Resources"],
        host=entry["NodeManagerAddress"],
    )


def domain_of(labels: Mapping[str, str]) -> str:
    """What fails or is linked together: ranks of a domain are neighbours."""
    return next((labels[key] for key in DOMAINS if key in labels), "")
