"""Which device gets which rank: neighbours in the mesh are neighbours in the cluster.

Devices are taken in the order (domain, head first, node, index), whatever order the cluster offers
them in, so that the ranks of a node are consecutive. Units are cut from the devices of one node,
since they talk in every layer. One that straddled nodes without a word was the alternative; it
trains, at a fraction of the speed.
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
        return Placement(devices=tuple(device for group in groups[:needed] for device in group))
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
