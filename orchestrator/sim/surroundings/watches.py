"""What the simulated controller sees of its nodes, and what silence leads to on both sides.

A node that is cut off, or whose agent stands still, is silent after one patience and lost after
three; its processes live as long as their lease. Where they are gone and the kernel is not, who
knocks is refused. One that was given up and is heard again starts
over under its old name: it is cleared, says that it is empty, and is offered anew.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from remesh.orchestrator.control.words.events import Event, NodeLost, NodeRefused, NodeSilent
from remesh.orchestrator.sim.shells.network import Network
from remesh.orchestrator.sim.shells.sim_host import Host
from remesh.orchestrator.sim.shells.world import World
from remesh.orchestrator.sim.surroundings.outages import Outages

KNOCKS_EVERY_S = 0.05
BEATS_FOR_S = 100.0  # as far as it matters: longer than a controller is away


@dataclass(slots=True, eq=False)
class Watches:
    """`knows` says whether the controller counts on a node. `end_all` ends all that runs on one,
    `resume` lets its meshes go on, `offer` has it join.
    """

    world: World
    network: Network
    outages: Outages
    tell: Callable[[Event], None]
    knows: Callable[[str], bool]
    end_all: Callable[[Host], None]
    resume: Callable[[Host], None]
    offer: Callable[[Host], None]

    def cut(self, host: Host, for_s: float) -> None:
        """A node is unreachable for a while. Its processes live on, at most for their lease."""
        host.cut_off = True
        self._cut_vault(host)
        self._silence(host, for_s)

    def stall(self, host: Host, for_s: float) -> None:
        """A node's agent stands still for a while. Its processes reach each other, and go on."""
        host.stalled = True
        self._silence(host, for_s)

    def watch(self, host: Host) -> None:
        """The controller's watch of beats: silent after one patience, lost after three."""
        timers = self.world.timers
        silent_s = timers.node_silent_s(1) * self.world.between(1.0, 1.3)
        silent = NodeSilent(node=host.name, silent_s=silent_s)
        self._if_still_silent(host, silent_s, silent)
        cause = f"no sign of life for {timers.node_lost_s(1):.1f} s"
        lost = NodeLost(node=host.name, cause=cause)
        self._if_still_silent(host, timers.node_lost_s(1) * self.world.between(1.0, 1.3), lost)

    def refuse(self, host: Host) -> None:
        """Its processes have died and its kernel says so, to one who held a connection: again and
        again, until the node is done without. A new controller has held none.
        """
        broken_s = self.world.agenda.now_s

        def knock() -> None:
            if not self.outages.absent and self.knows(host.name):
                self.tell(NodeRefused(node=host.name, broken_s=broken_s))
                self.world.agenda.after(KNOCKS_EVERY_S, knock)

        self.world.agenda.after(self.world.between(0.001, 0.01), knock)

    def err(self, host: Host) -> None:
        """The controller, if it is there to look, takes a healthy node for one that is gone. If it
        does without it, it hears it all the same.
        """
        if self.outages.absent:
            return
        self.tell(NodeRefused(node=host.name, broken_s=self.world.agenda.now_s))
        self.tell(NodeSilent(node=host.name, silent_s=self.world.timers.node_silent_s(1)))
        come_home_s = self.world.between(0.1, 1.0)
        self.world.agenda.after(come_home_s, lambda: self._beat(host))

    def _silence(self, host: Host, for_s: float) -> None:
        self.network.cut(host.name)
        self.network.late_s[host.name] = self.world.agenda.now_s + for_s
        self.watch(host)
        lease_s = self.world.timers.lease_s
        if for_s > lease_s:
            self.world.agenda.after(lease_s, lambda: self._end_lease(host))
        self.world.agenda.after(for_s, lambda: self._heal(host))

    def _cut_vault(self, host: Host) -> None:
        if vault := self.world.vaults.get(host.name):
            vault.cut_off = host.cut_off

    def _if_still_silent(self, host: Host, delay_s: float, event: Event) -> None:
        def check() -> None:
            if self.outages.absent:
                self.world.agenda.after(self.world.timers.adopt_s(1), check)
            elif not host.is_heard:
                self.tell(event)

        self.world.agenda.after(delay_s, check)

    def _heal(self, host: Host) -> None:
        if not host.alive or host.is_heard:
            return
        host.cut_off = host.stalled = False
        self._cut_vault(host)
        self.network.heal(host.name)
        self._beat(host)
        self.resume(host)

    def _beat(self, host: Host, again_s: float = 1.0) -> None:
        """It is heard now and later: a controller that is back may be told only then that the node
        was silent before.
        """
        self._come_home(host)
        if again_s < BEATS_FOR_S:
            self.world.agenda.after(again_s, partial(self._beat, host, 2 * again_s))

    def _come_home(self, host: Host) -> None:
        """One that is done without, and is heard: it is cleared, and offered anew."""
        if host.is_heard and not self.knows(host.name):
            self.end_all(host)
            self.offer(host)

    def _end_lease(self, host: Host) -> None:
        if not host.is_heard:
            self.end_all(host)
