"""Links to the agents of the nodes: what is decided in one turn goes to each node in one message.

One thread owns all that is known of agents here, and does one thing after the other: what others
ask of it stands in a queue. So no event waits for Ray, and the orders of a node keep their order:
those for an agent that is about to be there wait for it.
"""

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from remesh.actors.agent.words import EndNode, NodeOrder, NodeOrders, NodeWord
from remesh.actors.links.unheard import Unheard
from remesh.actors.node.offers import Room
from remesh.parallel.threads import heard_thread


class NodeAgent(Protocol):
    """An agent somewhere. Calls return at once, `stacks` within its limit; what it is to take may
    be lost.

    Orders that are not obeyed, since a `newer` controller has given some, change nothing.
    """

    def when_over(self, tell: Callable[[str], object]) -> None: ...

    def take(self, orders: NodeOrders, newer: Callable[[int], object]) -> None: ...

    def stacks(self, workers: Iterable[str], limit_s: float) -> dict[str, str]: ...

    def kill(self) -> None: ...


class Agents(Protocol):
    """Where agents come from."""

    def start(self, node: str, room: Room) -> NodeAgent: ...

    def found(self) -> Mapping[str, Sequence[NodeAgent]]: ...


@dataclass(slots=True)
class _Link:
    """To one agent. `agent` is None until it has been asked for, and then told what is `waiting`.

    Another one follows one that is `leaving` where there is room `again`, and is told `later`.
    """

    unheard: Unheard
    agent: NodeAgent | None = None
    waiting: list[NodeOrder] = field(default_factory=list)
    leaving: bool = False
    again: Room | None = None
    later: list[NodeOrder] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AgentHearer:
    """Who hears of agents: that one `begins` on a node, and how one on a node came to be `over`.

    Each that begins is over once, whether it was to end or not. One that obeys a `newer` controller
    says so.
    """

    begins: Callable[[str], object]
    over: Callable[[str, str], object]
    newer: Callable[[int], object]


class Links:
    """To the agents of one start of the run, from its controller of this incarnation."""

    def __init__(self, agents: Agents, incarnation: int, told: AgentHearer) -> None:
        self._agents = agents
        self._incarnation = incarnation
        self._told = told
        self._links: dict[str, _Link] = {}
        self._given: dict[str, list[NodeOrder]] = defaultdict(list)
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._starts: queue.SimpleQueue[tuple[str, Room]] = queue.SimpleQueue()
        self._none_left = threading.Event()
        self._none_left.set()
        self._ended = False

    def begin(self) -> None:
        heard_thread(self._live, name="links").start()
        heard_thread(self._start_all, name="starts").start()

    def adopt(self) -> set[str]:
        """Take over the agents that an earlier controller has started; on which nodes they are.

        Nobody is told that they begin. Of several on a node the newest stays.
        """
        found = self._agents.found()
        for node, agents in found.items():
            for agent in agents[:-1]:
                agent.kill()
            self._asked.put(partial(self._started, node, agents[-1]))
        return set(found)

    def start(self, node: str, room: Room) -> None:
        """Unless there is an agent. It follows one that is still leaving, once that is gone."""
        self._asked.put(partial(self._start, node, room))

    def give(self, node: str, order: NodeOrder) -> None:
        """Goes out with the next `send`. A node without an agent is told nothing."""
        self._given[node].append(order)

    def send(self) -> None:
        """All that was given since the last one, in one message to each node."""
        given, self._given = self._given, defaultdict(list)
        for node, orders in given.items():
            self._asked.put(partial(self._send, node, orders))

    def hear(self, word: NodeWord) -> None:
        """What an agent says tells which orders have reached it; those that were lost go again."""
        heard = word.heard if word.incarnation == self._incarnation else 0
        self._asked.put(partial(self._hear, word.node, heard, beat=not word.events))

    def release(self, node: str) -> None:
        """The agent is to end, and with it what is left of the run on the node."""
        self._asked.put(partial(self._release, node))

    def kill(self, node: str) -> None:
        """The same for one that does not hear, or does not run yet."""
        self._asked.put(partial(self._kill, node))

    def stacks(self, workers: Mapping[str, Sequence[str]], limit_s: float) -> dict[str, str]:
        """The stacks of these workers by node, as far as their agents tell within the limit."""
        told: dict[str, str] = {}
        found: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        asked = 0
        for node, names in workers.items():
            link = self._links.get(node)
            if link is not None and link.agent is not None:
                ask = partial(link.agent.stacks, names, limit_s)
                heard_thread(partial(_answer, ask, found), name="stacks").start()
                asked += 1
        for _ in range(asked):
            told |= found.get()
        return told

    def end(self, limit_s: float) -> None:
        """All agents are to end. Waits for them, bounded; those that are there still are killed."""
        self._none_left.clear()
        self._asked.put(self._end)
        if not self._none_left.wait(limit_s):
            self._asked.put(self._kill_all)

    def turn(self) -> None:
        """Do what is asked for by now."""
        while not self._asked.empty():
            self._asked.get()()

    def start_one(self) -> None:
        """Start the agent that was asked for first; waits until one is."""
        node, room = self._starts.get()
        agent = self._agents.start(node, room)
        self._asked.put(partial(self._started, node, agent))

    def _live(self) -> None:
        while True:
            self._asked.get()()

    def _start_all(self) -> None:
        while True:
            self.start_one()

    def _start(self, node: str, room: Room) -> None:
        link = self._links.get(node)
        if self._ended or (link is not None and (not link.leaving or link.again)):
            return
        self._told.begins(node)
        if link is None:
            self._begin(node, room, [])
        else:
            link.again = room

    def _begin(self, node: str, room: Room, orders: list[NodeOrder]) -> None:
        self._links[node] = _Link(unheard=Unheard(self._incarnation), waiting=orders)
        self._starts.put((node, room))

    def _started(self, node: str, agent: NodeAgent) -> None:
        link = self._links.setdefault(node, _Link(unheard=Unheard(self._incarnation)))
        link.agent = agent
        agent.when_over(lambda cause: self._asked.put(partial(self._is_over, node, agent, cause)))
        orders, link.waiting = link.waiting, []
        if orders:
            self._tell(link, orders)

    def _send(self, node: str, orders: list[NodeOrder]) -> None:
        link = self._links.get(node)
        if link is None:
            return
        if link.leaving:
            link.later += orders
        elif link.agent is None:
            link.waiting += orders
        else:
            self._tell(link, orders)

    def _tell(self, link: _Link, orders: list[NodeOrder]) -> None:
        self._take(link, [link.unheard.add(orders)])

    def _hear(self, node: str, heard: int, *, beat: bool) -> None:
        if link := self._links.get(node):
            self._take(link, link.unheard.hear(heard, beat=beat))

    def _take(self, link: _Link, told: Iterable[NodeOrders]) -> None:
        if link.agent is not None:
            for orders in told:
                link.agent.take(orders, self._told.newer)

    def _release(self, node: str) -> None:
        self._send(node, [EndNode()])
        self._leave(node)

    def _kill(self, node: str) -> None:
        link = self._links.get(node)
        if link is not None and link.agent is not None:
            link.agent.kill()
            self._leave(node)
        else:
            self._release(node)

    def _leave(self, node: str) -> None:
        """Who comes after it has not been asked for yet."""
        link = self._links.get(node)
        if link is None:
            return
        if link.again is not None:
            self._told.over(node, "is not needed any more")
        link.leaving, link.again, link.later = True, None, []

    def _is_over(self, node: str, agent: NodeAgent, cause: str) -> None:
        link = self._links.get(node)
        if link is None or link.agent is not agent:
            return
        del self._links[node]
        self._told.over(node, cause)
        if link.again is not None and not self._ended:
            self._begin(node, link.again, link.later)
        if not self._links:
            self._none_left.set()

    def _end(self) -> None:
        self._ended = True
        for node in list(self._links):
            self._release(node)
        if not self._links:
            self._none_left.set()

    def _kill_all(self) -> None:
        for node in list(self._links):
            self._kill(node)


def _answer(ask: Callable[[], dict[str, str]], found: "queue.SimpleQueue[dict[str, str]]") -> None:
    try:
        found.put(ask())
    except Exception:
        logging.getLogger(__name__).exception("an agent could not be asked")
        found.put({})
