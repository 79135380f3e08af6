"""Whom a fault strikes: drawn from those that are there and heard."""

from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.sim_host import HEAD, Host
from remesh.orchestrator.sim.shells.world import World
from remesh.orchestrator.sim.surroundings.cluster import Cluster


def often(world: World) -> bool:
    return world.chance.random() < 0.7  # noqa: PLR2004 - a share of faults


def living(cluster: Cluster) -> list[SimProcess]:
    """Living processes of heard nodes in random order."""
    found = [
        process
        for process in cluster.processes.values()
        if process.alive and not process.frozen and cluster.hosts[process.node].is_heard
    ]
    cluster.world.chance.shuffle(found)
    return found


def other_hosts(cluster: Cluster) -> list[Host]:
    """Those that are heard, without the head."""
    hosts = [h for h in cluster.hosts.values() if h.is_heard and h.name != HEAD]
    cluster.world.chance.shuffle(hosts)
    return hosts
