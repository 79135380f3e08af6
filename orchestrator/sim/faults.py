"""What befalls the simulated cluster: drawn from the seed, at random or cruelly close moments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from remesh.orchestrator.control.words.events import (
    Amended,
    LadderChanged,
    ScaleRequested,
    StopRequested,
)
from remesh.orchestrator.job.amendments import Amendment
from remesh.orchestrator.sim.cluster import HEAD, Cluster, Host
from remesh.orchestrator.sim.shells.process import SimProcess
from remesh.orchestrator.sim.shells.world import OTHER_LADDERS, RATE, World

WEIGHTS = {
    "kill": 6,
    "kill twice": 2,
    "kill node": 3,
    "kill controller": 3,
    "freeze": 3,
    "blink": 2,
    "cut off": 3,
    "join": 3,
    "drain": 3,
    "short notice": 1,
    "scale": 3,
    "flap": 2,
    "corrupt checkpoint": 1,
    "bad copies": 1,
    "kill all": 1,
    "stop": 1,
}
VAULT_WEIGHTS = {"kill vault": 3, "kill worker and vault": 2, "rot": 1, "kill node": 2, "kill": 2}
SHORTLY_AFTER = 0.5
WITH_A_STEP = 0.2
CHANGES = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """Strikes at a moment of the training or, if `at_step` is set, soon after that step's vote."""

    kind: str
    at_s: float = 0.0
    at_step: int | None = None


def draw_faults(chance: Random, steps: int, span_s: float) -> list[PlannedFault]:
    """Up to six faults.

    About half of them strike while the one before is being dealt with, a few others when a step
    ends: every second of those when the last one does.
    """
    return _drawn(
        chance, steps, span_s, chance.choices(*_weighted(WEIGHTS), k=chance.randint(0, 6))
    )


def draw_vault_faults(chance: Random, steps: int, span_s: float) -> list[PlannedFault]:
    """Up to three more for a run with vaults."""
    weighted = _weighted(VAULT_WEIGHTS)
    return _drawn(chance, steps, span_s, chance.choices(*weighted, k=chance.randint(0, 3)))


def draw_changes(kind: str, chance: Random, steps: int, span_s: float) -> list[PlannedFault]:
    """In every third run one or two more: other meshes than the present ones are wanted, or other
    rates.
    """
    if chance.random() > CHANGES:
        return []
    return _drawn(chance, steps, span_s, [kind] * chance.randint(1, 2))


def _weighted(weights: Mapping[str, int]) -> tuple[list[str], list[int]]:
    return list(weights), list(weights.values())


def _drawn(chance: Random, steps: int, span_s: float, kinds: list[str]) -> list[PlannedFault]:
    faults: list[PlannedFault] = []
    for kind in kinds:
        if chance.random() < WITH_A_STEP:
            at_step = chance.choice([steps, chance.randint(1, steps)])
            faults.append(PlannedFault(kind=kind, at_step=at_step))
            continue
        at_s = chance.uniform(0.0, span_s)
        if faults and chance.random() < SHORTLY_AFTER:
            at_s = faults[-1].at_s + chance.uniform(0.0, 1.5)
        faults.append(PlannedFault(kind=kind, at_s=at_s))
    return sorted(faults, key=lambda fault: fault.at_s)


def strike(fault: PlannedFault, cluster: Cluster) -> None:
    STRIKES[fault.kind](cluster)


def _kill_node(cluster: Cluster) -> None:
    for host in _other_hosts(cluster)[:1]:
        cluster.kill_host(host)


def _drain(cluster: Cluster, for_s: float) -> None:
    for host in _other_hosts(cluster)[:1]:
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


def _flap(cluster: Cluster) -> None:
    """A node dies and is soon back, under another name."""
    for host in _other_hosts(cluster)[:1]:
        cluster.kill_host(host)
        delay_s = cluster.world.between(0.5, 4.0)
        cluster.world.agenda.after(delay_s, partial(cluster.join, host.address))


def _kill_controller(cluster: Cluster) -> None:
    """Mostly Ray starts it again at once, sometimes only after all leases have lapsed."""
    world = cluster.world
    cluster.outages.strike(world.between(0.3, 4.0) if _often(world) else world.timers.lease_s + 5)


def _cut_off(cluster: Cluster) -> None:
    """Mostly for a while, sometimes for longer than the leases last."""
    for host in _other_hosts(cluster)[:1]:
        world = cluster.world
        cluster.cut(host, world.between(0.1, 4.0) if _often(world) else 60.0)


def _freeze(cluster: Cluster) -> None:
    """Mostly for a while, sometimes for good."""
    for process in _living(cluster)[:1]:
        world = cluster.world
        cluster.freeze(process, world.between(0.5, 5.0) if _often(world) else 1e6)


def _blink(cluster: Cluster) -> None:
    """Too short for anybody to notice."""
    for process in _living(cluster)[:1]:
        cluster.freeze(process, cluster.world.between(0.0, 0.4))


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
    hosts = [host for host in cluster.hosts.values() if host.alive and not host.cut_off]
    cluster.kill_vault(cluster.world.chance.choice(hosts))


def _kill_with_vault(cluster: Cluster) -> None:
    for process in _living(cluster)[:1]:
        cluster.kill(process)
        cluster.kill_vault(cluster.hosts[process.node])


def _rot(cluster: Cluster) -> None:
    """A bit flips in some slot."""
    vaults = cluster.world.vaults.values()
    slots = [s for vault in vaults for lease in vault.leases.values() for s in lease if s.sealed]
    if slots:
        cluster.world.chance.choice(slots).rotten = True


def _stop(cluster: Cluster) -> None:
    cluster.stopping = True
    cluster.tell(StopRequested(reason="stopped by the user"))


def _often(world: World) -> bool:
    return world.chance.random() < 0.7  # noqa: PLR2004 - a share of faults


def _kill_some(cluster: Cluster, count: int) -> None:
    for process in _living(cluster)[:count]:
        cluster.kill(process)


def _living(cluster: Cluster) -> list[SimProcess]:
    """Living processes of heard nodes in random order."""
    living = [
        process
        for process in cluster.processes.values()
        if process.alive and not process.frozen and not cluster.hosts[process.node].cut_off
    ]
    cluster.world.chance.shuffle(living)
    return living


def _other_hosts(cluster: Cluster) -> list[Host]:
    hosts = [h for h in cluster.hosts.values() if h.alive and not h.cut_off and h.name != HEAD]
    cluster.world.chance.shuffle(hosts)
    return hosts


STRIKES: Mapping[str, Callable[[Cluster], None]] = {
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
    "kill worker and vault": _kill_with_vault,
    "rot": _rot,
    "ladder": _change_ladder,
    "amend": _amend,
}
