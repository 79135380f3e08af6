"""Whether somebody who was killed had given reason for it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from remesh.orchestrator.sim.shells.agenda import Agenda
from remesh.orchestrator.sim.shells.network import Network
from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.sim_host import Host

FORGIVEN_S = 6.0  # after trouble, its signs may still be on their way


@dataclass(slots=True)
class Health:
    """Looks at a process as nobody in the cluster can. `accused` are those that somebody has called
    ill, `trouble_s` the moments at which the last trouble of a process or node is over.
    """

    agenda: Agenda
    network: Network
    hosts: Mapping[str, Host]
    processes: Mapping[str, SimProcess]
    accused: Collection[str]
    trouble_s: Mapping[str, float]

    def why_ill(self, worker: str) -> str:
        """What is wrong with it, or was a moment ago; empty for one that is healthy."""
        process = self.processes.get(worker)
        if process is None or not process.alive:
            return "dead"
        host, now_s = self.hosts[process.node], self.agenda.now_s
        names = (worker, process.node)
        signs: Mapping[str, Callable[[], bool]] = {
            "accused": lambda: worker in self.accused,
            "frozen": lambda: process.frozen,
            "on a node that is not heard": lambda: not host.is_heard,
            "on a node with a bad disk": lambda: host.bad_disk,
            "slow to start": lambda: host.start_times > 1,
            "apart from others": lambda: any(process.node in one for one in self.network.broken),
            "late": lambda: self.network.late_s.get(process.node, -FORGIVEN_S) > now_s - FORGIVEN_S,
            "in trouble": lambda: any(
                self.trouble_s.get(name, -FORGIVEN_S) > now_s - FORGIVEN_S for name in names
            ),
        }
        return next((sign for sign, holds in signs.items() if holds()), "")
