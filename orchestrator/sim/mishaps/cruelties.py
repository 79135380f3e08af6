"""The crueller faults: what is slow, stands still, lies, hangs, or is done by other people."""

from collections.abc import Callable, Mapping
from functools import partial

from remesh.orchestrator.control.words.events import StopRequested, WorkerErred, WorkerFrozen
from remesh.orchestrator.sim.mishaps.victims import living, often, other_hosts
from remesh.orchestrator.sim.shells.sim_host import Host
from remesh.orchestrator.sim.surroundings.cluster import Cluster

FOR_GOOD_S = 1e6


def _storage_stands_still(cluster: Cluster) -> None:
    world = cluster.world
    world.storage.stand_still(world.between(1.0, 20.0) if often(world) else world.between(20, 90))


def _disk_is_full(cluster: Cluster) -> None:
    world = cluster.world
    until_s = world.agenda.now_s + world.between(0.5, 8.0)
    world.storage.full_until_s = max(world.storage.full_until_s, until_s)


def _commit_hangs(cluster: Cluster) -> None:
    cluster.world.storage.hangs += 1


def _controller_stands_still(cluster: Cluster) -> None:
    world = cluster.world
    cluster.outages.stand_still(world.between(0.1, 5.0) if often(world) else world.between(5, 60))


def _agent_stalls(cluster: Cluster) -> None:
    for host in other_hosts(cluster)[:1]:
        cluster.watches.stall(host, cluster.world.between(0.2, 8.0))


def _false_word(cluster: Cluster) -> None:
    """Of a healthy process, or of a healthy node."""
    world = cluster.world
    if often(world):
        for process in living(cluster)[:1]:
            silent_s = world.timers.silent_s
            cluster.ailing.accused.add(process.name)
            cluster.post(process.node, WorkerFrozen(worker=process.name, silent_s=silent_s))
    else:
        for host in other_hosts(cluster)[:1]:
            cluster.watches.err(host)


def _part(cluster: Cluster) -> None:
    """Some nodes do not reach the others, in one direction or both; all reach the controller."""
    world, hosts = cluster.world, [host.name for host in cluster.hosts.values() if host.is_heard]
    world.chance.shuffle(hosts)
    some = hosts[: max(1, len(hosts) // 2)] if often(world) else hosts[:1]
    _break_links(cluster, some, [name for name in hosts if name not in some])
    world.agenda.after(world.between(0.5, 40.0), cluster.heal_links)


def _bad_link(cluster: Cluster) -> None:
    """One node never reaches the others again, nor they it."""
    for host in other_hosts(cluster)[:1]:
        _break_links(cluster, [host.name], [name for name in cluster.hosts if name != host.name])


def _break_links(cluster: Cluster, some: list[str], others: list[str]) -> None:
    cluster.network.part(some, others)
    if often(cluster.world):
        cluster.network.part(others, some)
    cluster.ailing.say_stuck_later()


def _hang(cluster: Cluster) -> None:
    for process in living(cluster)[:1]:
        world = cluster.world
        cluster.ailing.hang(process, world.between(1.0, 12.0) if often(world) else FOR_GOOD_S)


def _cannot_be_killed(cluster: Cluster) -> None:
    for process in living(cluster)[:1]:
        world = cluster.world
        cluster.ailing.undying.add(process.name)
        cluster.ailing.freeze(process, world.between(2.0, 20.0) if often(world) else FOR_GOOD_S)


def _bad_disk(cluster: Cluster) -> None:
    for host in other_hosts(cluster)[:1]:
        host.bad_disk = True
        for mesh in list(cluster.meshes.values())[-1:]:
            cluster.ailing.err(mesh.form)


def _job_errs(cluster: Cluster) -> None:
    """What no node and no further try can help."""
    for process in living(cluster)[:1]:
        word = WorkerErred(
            worker=process.name,
            generation=process.generation,
            error="the data is not what the job says",
            user_error=True,
            certain=True,
        )
        cluster.post(process.node, word)
        cluster.kill(process)


def _deal_twice(cluster: Cluster) -> None:
    """The next process of a node gets a device that another one has; then one is lost."""
    for process in living(cluster)[:1]:
        cluster.hosts[process.node].deals_twice = True
        cluster.kill(process)


def _slow_host(cluster: Cluster) -> None:
    """Processes start there after minutes, if at all; then one is lost."""
    for process in living(cluster)[:1]:
        host = cluster.hosts[process.node]
        host.start_times = cluster.world.between(10.0, 60.0)
        cluster.world.agenda.after(60.0, partial(_is_quick, host))
        cluster.ailing.trouble(host.name, 60.0 + 3 * host.start_times)
        cluster.kill(process)


def _is_quick(host: Host) -> None:
    host.start_times = 1.0


def _notice(cluster: Cluster) -> None:
    """The node of the controller is to go, after a while or nearly at once."""
    cluster.notify_head(cluster.world.chance.choice([0.0, 2.0, 30.0, 120.0]))


def _stop_twice(cluster: Cluster) -> None:
    """The word is repeated, as Ray does, and the command goes as well."""
    _stop(cluster, "stopped by the user")
    world, again = cluster.world, partial(_stop, cluster, "stopped by the user")
    world.agenda.after(world.between(0.0, 2.0), again)
    world.agenda.after(world.between(0.0, 4.0), partial(_driver_gone, cluster))


def _stop(cluster: Cluster, reason: str) -> None:
    cluster.tell(StopRequested(reason=reason, wish="first"))


def _stop_now(cluster: Cluster) -> None:
    cluster.tell(StopRequested(reason="stopped by the user", wish="second", at_once=True))


def _driver_gone(cluster: Cluster) -> None:
    reason = "the command that started the run is gone"
    cluster.tell(StopRequested(reason=reason, wish="driver"))


CRUELTIES: Mapping[str, Callable[[Cluster], None]] = {
    "storage stands still": _storage_stands_still,
    "disk full": _disk_is_full,
    "commit hangs": _commit_hangs,
    "standstill": _controller_stands_still,
    "agent stalls": _agent_stalls,
    "false word": _false_word,
    "partition": _part,
    "bad link": _bad_link,
    "hang": _hang,
    "unkillable": _cannot_be_killed,
    "bad disk": _bad_disk,
    "job errs": _job_errs,
    "device twice": _deal_twice,
    "slow host": _slow_host,
    "head dies": lambda cluster: cluster.crash(),
    "head notice": _notice,
    "stop twice": _stop_twice,
    "stop now": _stop_now,
    "driver gone": _driver_gone,
    "second start": lambda cluster: cluster.claim_again(),
}
