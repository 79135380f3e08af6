"""One placement group a node, with a bundle for each worker that the run may have there.

The workers of a run so find their places free whenever one is replaced, and replicas can change
their shape while processes live. One group for a whole replica lost: a group cannot grow, and what
it has lost with a node moves elsewhere by itself. The groups are detached, as the workers are; they
go with the run, or with the node's agent where there is no run any more to see to it.
"""

from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from remesh.actors.node.offers import Room
from remesh.actors.orders import RunSpec

NODE_ID = "ray.io/node-id"


class Groups:
    """Groups by node. Each call takes milliseconds; a group that is not ready lets actors wait."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._groups: dict[str, PlacementGroup] = {}

    def strategy(self, node: str, room: Room) -> PlacementGroupSchedulingStrategy:
        """Puts a worker into a free bundle of the node's group, which is made for the first one."""
        if not self.adopt(node):
            self._groups[node] = self._make(node, room)
        return PlacementGroupSchedulingStrategy(self._groups[node])

    def adopt(self, node: str) -> bool:
        """Whether there is a group, made by this controller or one before it."""
        found = self._groups.get(node) or _find(group_name(self._spec.run, node))
        if found is not None:
            self._groups[node] = found
        return found is not None

    def remove(self, node: str) -> None:
        if self.adopt(node):
            remove_placement_group(self._groups.pop(node))

    def remove_all(self) -> None:
        for node in list(self._groups):
            self.remove(node)

    def _make(self, node: str, room: Room) -> PlacementGroup:
        wanted = self._spec.max_members + self._spec.job.elastic.spares
        bundles = min(room.slots, wanted)
        return placement_group(
            [{"CPU": 1.0}] * bundles,
            strategy="STRICT_PACK",
            name=group_name(self._spec.run, node),
            lifetime="detached",
            bundle_label_selector=[{NODE_ID: room.node_id}] * bundles,
        )


def group_name(run: str, node: str) -> str:
    return f"remesh-{run}-{node}"


def remove_group(name: str) -> None:
    """Remove the group of this name, if there is one."""
    if group := _find(name):
        remove_placement_group(group)


def _find(name: str) -> PlacementGroup | None:
    try:
        return get_placement_group(name)
    except ValueError:
        return None
