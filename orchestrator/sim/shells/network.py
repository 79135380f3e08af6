"""Messages between the controller and the nodes: late, out of order, sometimes twice, cut off.

And which nodes reach each other: a mesh needs that of all its members.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random

from remesh.orchestrator.sim.shells.agenda import Agenda

QUICK_S = 0.05


@dataclass(slots=True)
class Network:
    """A cut-off node's messages wait for its return, in both directions, as a socket's would.

    `doubled` and `delayed` are the shares of messages that come twice, or late, `lost` that of
    those which are lost: the sender tries again after `again_s`, also if only the answer is lost.
    `late_s` is the moment at which the last late message of a node comes.
    `broken` are the pairs of nodes (from, to) of which nothing gets to the second.
    """

    agenda: Agenda
    chance: Random
    doubled: float
    delayed: float
    lost: float
    again_s: float
    held: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    broken: set[tuple[str, str]] = field(default_factory=set)
    late_s: dict[str, float] = field(default_factory=dict)

    def send(self, node: str, deliver: Callable[[], None]) -> None:
        """Delivers between the controller and `node`, whichever sends."""
        tries = self._tries()
        self._send_once(node, deliver, tries * self.again_s)
        if self.chance.random() < self.doubled:
            self._send_once(node, deliver, 0.0)
        if self._tries():
            self._send_once(node, deliver, (tries + 1) * self.again_s)

    def cut(self, node: str) -> None:
        self.held.setdefault(node, [])

    def heal(self, node: str) -> None:
        for deliver in self.held.pop(node, []):
            self.agenda.after(self._delay_s(), deliver)

    def part(self, some: Collection[str], others: Collection[str]) -> None:
        """Nothing gets from these nodes to those any more; both still reach the controller."""
        self.broken |= {(one, other) for one in some for other in others if one != other}

    def join(self) -> None:
        """All nodes reach each other again."""
        for pair in self.broken:
            self.late_s.update(dict.fromkeys(pair, self.agenda.now_s))
        self.broken.clear()

    def joins(self, nodes: Collection[str]) -> bool:
        """Whether each of these nodes reaches each other one."""
        return not any(one in nodes and other in nodes for one, other in self.broken)

    def _tries(self) -> int:
        """How often a message is lost before it comes through."""
        tries = 0
        while self.lost and self.chance.random() < self.lost:
            tries += 1
        return tries

    def _send_once(self, node: str, deliver: Callable[[], None], after_s: float) -> None:
        if node in self.held:
            self.held[node].append(deliver)
            return
        delay_s = after_s + self._delay_s()
        if delay_s > QUICK_S:
            at_s = self.agenda.now_s + delay_s
            self.late_s[node] = max(at_s, self.late_s.get(node, 0.0))
        self.agenda.after(delay_s, deliver)

    def _delay_s(self) -> float:
        if self.chance.random() < self.delayed:
            return self.chance.uniform(0.05, 0.6)
        return self.chance.uniform(0.0005, 0.01)
