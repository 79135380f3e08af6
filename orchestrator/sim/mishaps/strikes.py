"""What each kind of fault does to the simulated cluster."""

from collections.abc import Callable, Mapping
from functools import partial

from remesh.orchestrator.control.words.events import (
    Amended,
    LadderChanged,
    ScaleRequested,
    StopRequested,
)
from remesh.orchestrator.job.amendments import Amendment
from remesh.orchestrator.sim.mishaps.cruelties import CRUELTIES
from remesh.orchestrator.sim.mishaps.faults import PlannedFault
from remesh.orchestrator.sim.mishaps.victims import living, often, other_hosts
from remesh.orchestrator.sim.shells.world import OTHER_LADDERS, RATE, WISHES
from remesh.orchestrator.sim.surroundings.cluster import Cluster


def strike(fault: PlannedFault, cluster: Cluster) -> None:
    STRIKES[fault.kind](cluster)


def _kill_node(cluster: Cluster) -> None:
    for host in other_hosts(cluster)[:1]:
        cluster.kill_host(host)


def _drain(cluster: Cluster, for_s: float) -> None:
    for host in other_hosts(cluster)[:1]:
        cluster.drain(host, for_s)


def _scale(cluster: Cluster) -> None:
    cluster.tell(ScaleRequested(nodes=cluster.world.chance.randint(1, 3)))


def _amend(cluster: Cluster) -> None:
    """Another rate from a step on, which may be trained by then."""
    chance = cluster.world.chance
    step, rate = chance.randint(1, cluster.world.settings.steps), chance.choice([1e-3, RATE])
    cluster.tell(Amended(changes=(Amendment(step=step, key="train.lr", old=RATE, new=rate),)))


def _change_ladder(cluster: Cluster) -> None:
    """The head's slots alone make up a mesh of the new one, too."""
    world = cluster.world
    fitting = [one for one in OTHER_LADDERS if one.smallest(1).workers <= world.settings.slots]
    cluster.tell(LadderChanged(ladder=world.chance.choice(fitting), reason="drawn"))


def _ask_for_degrees(cluster: Cluster) -> None:
    """Those of a mesh that the head's slots alone make up, or what the job says."""
    world = cluster.world
    fitting = [one for one in WISHES if one[1].smallest(1).workers <= world.settings.slots]
    wish, ladder = world.chance.choice(fitting)
    ladder = ladder if wish else world.settings.ladder
    cluster.tell(LadderChanged(ladder=ladder, reason="somebody asked", layout=wish))


def _flap(cluster: Cluster) -> None:
    """A node dies and is soon back, under another name."""
    for host in other_hosts(cluster)[:1]:
        cluster.kill_host(host)
        delay_s = cluster.world.between(0.5, 4.0)
        cluster.world.agenda.after(delay_s, partial(cluster.join, host.address))


def _kill_controller(cluster: Cluster) -> None:
    """Mostly Ray starts it again at once, sometimes only after all leases have lapsed."""
    world = cluster.world
    cluster.outages.strike(world.between(0.3, 4.0) if often(world) else world.timers.lease_s + 5)


def _cut_off(cluster: Cluster) -> None:
    """Mostly for a while, sometimes for longer than the leases last."""
    for host in other_hosts(cluster)[:1]:
        world = cluster.world
        cluster.watches.cut(host, world.between(0.1, 4.0) if often(world) else 60.0)


def _freeze(cluster: Cluster) -> None:
    """Mostly for a while, sometimes for good."""
    for process in living(cluster)[:1]:
        world = cluster.world
        cluster.ailing.freeze(process, world.between(0.5, 5.0) if often(world) else 1e6)


def _blink(cluster: Cluster) -> None:
    """Too short for anybody to notice."""
    for process in living(cluster)[:1]:
        cluster.ailing.freeze(process, cluster.world.between(0.0, 0.4))


def _corrupt_checkpoint(cluster: Cluster) -> None:
    for saved in list(cluster.world.committed.values())[-1:]:
        saved.readable = False


def _bad_copies(cluster: Cluster) -> None:
    """For a while no member can take the state of another; then one more is lost."""
    world = cluster.world
    world.copies_fail = True

    def heal() -> None:
        world.copies_fail = False

    world.agenda.after(world.between(1.0, 6.0), heal)
    _kill_some(cluster, 1)


def _kill_vault(cluster: Cluster) -> None:
    hosts = [host for host in cluster.hosts.values() if host.is_heard]
    cluster.vaults.kill(cluster.world.chance.choice(hosts))


def _freeze_vault(cluster: Cluster) -> None:
    chance = cluster.world.chance
    hosts = [host for host in cluster.hosts.values() if host.is_heard]
    cluster.vaults.freeze(chance.choice(hosts), chance.choice([0.2, 0.6, 5.0]))


def _kill_with_vault(cluster: Cluster) -> None:
    for process in living(cluster)[:1]:
        cluster.kill(process)
        cluster.vaults.kill(cluster.hosts[process.node])


def _rot(cluster: Cluster) -> None:
    """A bit flips in some slot."""
    vaults = cluster.world.vaults.values()
    slots = [slot for vault in vaults for slot in vault.sealed()]
    if slots:
        cluster.world.chance.choice(slots).rotten = True


def _stop(cluster: Cluster) -> None:
    cluster.tell(StopRequested(reason="stopped by the user"))


def _kill_some(cluster: Cluster, count: int) -> None:
    for process in living(cluster)[:count]:
        cluster.kill(process)


STRIKES: Mapping[str, Callable[[Cluster], None]] = {
    **CRUELTIES,
    "kill": lambda cluster: _kill_some(cluster, 1),
    "kill twice": lambda cluster: _kill_some(cluster, 2),
    "kill all": lambda cluster: _kill_some(cluster, len(cluster.processes)),
    "kill node": _kill_node,
    "kill controller": _kill_controller,
    "freeze": _freeze,
    "blink": _blink,
    "cut off": _cut_off,
    "join": Cluster.join,
    "drain": lambda cluster: _drain(cluster, 30.0),
    "short notice": lambda cluster: _drain(cluster, 0.2),
    "scale": _scale,
    "flap": _flap,
    "corrupt checkpoint": _corrupt_checkpoint,
    "bad copies": _bad_copies,
    "stop": _stop,
    "kill vault": _kill_vault,
    "freeze vault": _freeze_vault,
    "kill worker and vault": _kill_with_vault,
    "rot": _rot,
    "ladder": _change_ladder,
    "layout": _ask_for_degrees,
    "amend": _amend,
}
