"""Which device gets which rank: neighbours in the mesh are neighbours in the cluster.

Devices are taken in the order (domain, head first, node, index), whatever order the cluster offers
them in, so that the ranks of a node are consecutive. Units are cut from the devices of one node,
since they talk in every layer. One that straddled nodes without a word was the alternative; it
trains, at a fraction of the speed.

The units of a pipeline are on one node if they can be, else in one failure domain, else neighbours:
so they talk over short ways, and a node or a domain that fails takes few replicas along. What lost:
to cut pipelines out of the units as they come, of which each may straddle two nodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from remesh.orchestrator.plan.rung import Rung
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`index` is what the node calls it: among its devices the order of the local ranks."""

    node: str
    index: int
    domain: str = ""
    head: bool = False

    @property
    def order(self) -> tuple[str, bool, str, int]:
        return (self.domain, not self.head, self.node, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The devices by rank. `warnings` are sentences for the user."""

    devices: tuple[Device, ...]
    warnings: tuple[str, ...] = ()


def place(devices: Sequence[Device], rung: Rung) -> Placement:
    """The ranks of a mesh on some of these devices.

    Raises: UserError if two workers have one device, or the groups do not fit, with the numbers.
    """
    ordered = sorted(devices, key=lambda device: device.order)
    for first, second in pairwise(ordered):
        if first == second:
            raise UserError(f"two workers on {first.node} have the same device, {first.index}")
    layout, unit, needed = rung.layout, rung.unit, rung.num_units
    groups = list(_groups(ordered, unit.workers))
    if len(groups) >= needed:
        pipelines = _pipelines(groups, rung.stages)[: needed // rung.stages]
        pipelines.sort(key=lambda pipeline: pipeline[0].order)
        return Placement(devices=tuple(device for pipeline in pipelines for device in pipeline))
    if len(ordered) < layout.world_size:
        raise UserError(f"{layout} needs {layout.world_size} devices and there are {len(ordered)}")
    straddles = (
        f"{layout} needs {count(needed, 'group')} of {unit.workers} devices on one node each, and "
        f"there is room for {len(groups)}: some would straddle nodes"
    )
    if unit.on_one_node:
        raise UserError(
            f"{straddles}; use a smaller parallel.tp, or set parallel.allow_cross_node_tp = true "
            f"and lose speed"
        )
    return Placement(
        devices=tuple(ordered[: layout.world_size]), warnings=(f"{straddles}, which costs speed",)
    )


def _pipelines(units: Sequence[list[Device]], stages: int) -> list[list[Device]]:
    """The devices of whole pipelines, those first that are all on one node, or in one domain."""
    found: list[list[Device]] = []
    rest = list(units)
    for where in (_node_of, _domain_of, _anywhere):
        left: list[list[Device]] = []
        for _, together in groupby(rest, key=where):
            here = list(together)
            whole = len(here) - len(here) % stages
            cut = (here[first : first + stages] for first in range(0, whole, stages))
            found += [[device for unit in pipeline for device in unit] for pipeline in cut]
            left += here[whole:]
        rest = left
    return found


def _node_of(unit: Sequence[Device]) -> tuple[str, ...]:
    return unit[0].domain, unit[0].node


def _domain_of(unit: Sequence[Device]) -> tuple[str, ...]:
    return (unit[0].domain,)


def _anywhere(_: Sequence[Device]) -> tuple[str, ...]:
    return ()


def keeping_stages(rung: Rung, stages: Sequence[int | None]) -> list[int]:
    """Who gets which rank, where ranks of a placement have these stages of the state already.

    Units change places within their pipeline only: who has a stage keeps it, and the others take
    what is left, from the front on. For each rank of the mesh the one of the placement.
    """
    size, units = rung.unit.workers, [ranks[0] for ranks in rung.units()]
    order: list[int] = []
    for first in range(0, len(units), rung.stages):
        pipeline = units[first : first + rung.stages]
        kept: dict[int, int] = {}
        for rank in pipeline:
            stage = stages[rank]
            if stage is not None:
                kept.setdefault(stage, rank)
        others = iter([rank for rank in pipeline if rank not in kept.values()])
        order += [kept[n] if n in kept else next(others) for n in range(rung.stages)]
    return [rank for start in order for rank in range(start, start + size)]


def local_ranks(devices: Sequence[Device]) -> tuple[int, ...]:
    """For each rank its number among the ranks of its node, in the order of the devices there."""
    by_node: dict[str, list[int]] = {}
    for device in devices:
        by_node.setdefault(device.node, []).append(device.index)
    numbers = {
        (node, index): number
        for node, indices in by_node.items()
        for number, index in enumerate(sorted(indices))
    }
    return tuple(numbers[device.node, device.index] for device in devices)


def _groups(ordered: Sequence[Device], size: int) -> Iterator[list[Device]]:
    """As many groups of `size` devices as each node has room for; what is left over stays out."""
    for _, found in groupby(ordered, key=lambda device: device.node):
        here = list(found)
        for first in range(0, len(here) - size + 1, size):
            yield here[first : first + size]
