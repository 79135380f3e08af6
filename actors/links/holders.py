"""Who holds the processors of a node, said where an agent has no place there.

What an earlier run has left, whose controller is gone, is removed: nobody else would.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.util import list_named_actors, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from remesh.actors.cluster.private_ray import actor_table, free_processors
from remesh.actors.links.ray_agents import AGENT
from remesh.actors.links.watch import Watch
from remesh.actors.orders import NAMESPACE, controller_name
from remesh.orchestrator.user_text import count

MOST_NAMES = 3
UNKNOWN_LOOKS = 3  # before it is told of holders that nobody can name
THERE = ("ALIVE", "PENDING_CREATION")  # with an address of a node


class LateStarts:
    """Says who is in the way of agents that do not come within `after_s`, of each node once."""

    def __init__(
        self, watch: Watch, run: str, announce: Callable[[str], None], after_s: float
    ) -> None:
        self._watch = watch
        self._run = run
        self._announce = announce
        self._after_s = after_s
        self._told: set[str] = set()
        self._unknown: Counter[str] = Counter()

    def look_again(self) -> None:
        """Now and then, until the watch ends."""
        self._watch.repeat(self._look, self._after_s)

    def _look(self) -> None:
        for node, room in self._watch.late_starts(self._after_s).items():
            if node in self._told:
                continue
            holders = holders_on(room.node_id, actor_table(), placement_group_table())
            if not self._is_sure(node, holders):
                continue
            if left := remove_left(self._run):
                self._announce(f"removed {', '.join(left)}, left by a run that is dead")
            else:
                self._told.add(node)
                free = free_processors().get(room.node_id, 0.0)
                self._announce(said_of(node, free, room.slots, holders))

    def _is_sure(self, node: str, holders: Sequence[str]) -> bool:
        """Whether somebody else is in the way. Our own agent may have its place, and be slow, and
        Ray lists it only once its process is there.
        """
        self._unknown[node] += 1
        ours = any(f"remesh-{self._run}{AGENT}" in holder for holder in holders)
        return not ours and (bool(holders) or self._unknown[node] >= UNKNOWN_LOOKS)


def said_of(node: str, free: float, slots: int, holders: Sequence[str]) -> str:
    """One sentence: how many processors are free there, and who has the others."""
    names = ", ".join(holders[:MOST_NAMES]) or "tasks, or actors that Ray does not list"
    more = f" and {len(holders) - MOST_NAMES} more" if len(holders) > MOST_NAMES else ""
    return (
        f"node {node} has {free:g} of {count(slots, 'processor')} free, so the run waits for it: "
        f"they are held by {names}{more}; end those, or leave the node out"
    )


def holders_on(
    node_id: str, actors: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """The placement groups and actors on a node, in words, as Ray's tables list them."""
    found = [
        f"placement group {group['name'] or group['placement_group_id']}"
        for group in groups.values()
        if group["state"] == "CREATED" and node_id in group["bundles_to_node_id"].values()
    ]
    found += [
        f"actor {actor['Name'] or actor['ActorClassName']}"
        for actor in actors.values()
        if actor["State"] in THERE and actor["Address"]["NodeID"] == node_id
    ]
    return sorted(found)


def remove_left(run: str) -> list[str]:
    """End what other runs have left on the cluster, whose controllers are gone; its names."""
    names = [one["name"] for one in list_named_actors(all_namespaces=True)]
    groups = [group["name"] for group in placement_group_table().values()]
    left = left_behind(names, groups, run)
    for name in left:
        if AGENT in name:
            _kill(name)
        else:
            _remove(name)
    return left


def left_behind(actors: Iterable[str], groups: Iterable[str], run: str) -> list[str]:
    """Agents, and placement groups of older versions, of runs without a controller."""
    names = set(actors)
    ours = {name: _run_of(name) for name in (*names, *groups)}
    return sorted(
        name
        for name, other in ours.items()
        if other and other != run and controller_name(other) not in names
    )


def _run_of(name: str) -> str:
    """The run in a name of ours, `remesh-RUN-...`; empty if it is another's."""
    start, _, rest = name.partition("-")
    return rest.partition("-")[0] if start == "remesh" else ""


def _kill(name: str) -> None:
    try:
        ray.kill(ray.get_actor(name, NAMESPACE))
    except ValueError:  # gone by now
        return


def _remove(name: str) -> None:
    for key, group in placement_group_table().items():
        if group["name"] == name and group["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(key)))
