"""Messages between the controller and the nodes: late, out of order, sometimes twice, cut off."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from remesh.orchestrator.sim.shells.agenda import Agenda


@dataclass(slots=True)
class Network:
    """A cut-off node's messages wait for its return, in both directions, as a socket's would.

    `doubled` and `delayed` are the shares of messages that come twice, or late.
    """

    agenda: Agenda
    chance: Random
    doubled: float
    delayed: float
    held: dict[str, list[Callable[[], None]]] = field(default_factory=dict)

    def send(self, node: str, deliver: Callable[[], None]) -> None:
        """Delivers between the controller and `node`, whichever sends."""
        self._send_once(node, deliver)
        if self.chance.random() < self.doubled:
            self._send_once(node, deliver)

    def cut(self, node: str) -> None:
        self.held.setdefault(node, [])

    def heal(self, node: str) -> None:
        for deliver in self.held.pop(node, []):
            self.agenda.after(self._delay_s(), deliver)

    def _send_once(self, node: str, deliver: Callable[[], None]) -> None:
        if node in self.held:
            self.held[node].append(deliver)
        else:
            self.agenda.after(self._delay_s(), deliver)

    def _delay_s(self) -> float:
        if self.chance.random() < self.delayed:
            return self.chance.uniform(0.05, 0.6)
        return self.chance.uniform(0.0005, 0.01)
