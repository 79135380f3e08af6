"""Which nodes may be to blame for meshes that broke although nobody was lost.

Members that reach the controller and not each other are all alive and all complain. Who waited in
vain for whom says most: these pairs make up a graph, and one of its two sides has the fault. A node
with a bad link stands alone against all that name it; of two halves that do not see each other each
is a side. The smaller side is suspected, so that the larger one goes on. Where nobody is named, a
member that alone did not come is; else one node after the other is done without, on trial. What
lost: to ask each pair of nodes for a probe, which takes as long at 2,000 nodes as the training.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from remesh.orchestrator.control.memory.membership import Node

SUSPECTED_AFTER = 3  # tries in a row: a busy host may be late for two


@dataclass(slots=True, kw_only=True)
class Suspicions:
    """Nodes, by name, since a mesh last made a step.

    `pairs` has who waited in vain for whom, `absent` those that did not come where others did,
    `on_trial` those that the newest meshes did without, and `cleared` those without whom a mesh
    broke as well. `guilty` counts how often a mesh made steps as soon as it did without it.
    """

    pairs: dict[str, dict[str, None]] = field(default_factory=dict)
    absent: dict[str, None] = field(default_factory=dict)
    on_trial: dict[str, None] = field(default_factory=dict)
    cleared: dict[str, None] = field(default_factory=dict)
    guilty: dict[str, int] = field(default_factory=dict)

    def note(self, node: str, waited_for: Iterable[str]) -> None:
        """A member on `node` waited in vain for members on these. Its own links are no matter."""
        others = {other: None for other in waited_for if other != node}
        if others:
            self.pairs.setdefault(node, {}).update(others)

    def note_absent(self, nodes: Iterable[str]) -> None:
        self.absent.update(dict.fromkeys(nodes))

    def forget(self) -> None:
        """A mesh makes steps: what was suspected is over. Who is guilty is remembered."""
        self.pairs.clear()
        self.absent.clear()
        self.on_trial.clear()
        self.cleared.clear()

    def suspects(self, nodes: Sequence[Node], tries: int) -> list[Node]:
        """Whom of the nodes of a mesh to do without, after so many tries in a row."""
        sides = self._smaller_sides({node.name: node for node in nodes})
        if tries < SUSPECTED_AFTER and not any(node.name in self.guilty for node in sides):
            return []
        absent = [node for node in nodes if node.name in self.absent]
        if sides or absent:
            return sides or (absent if 2 * len(absent) <= len(nodes) else [])
        others = [node for node in nodes if node.name not in self.cleared]
        return sorted(others, key=self._order)[:1]

    def _order(self, node: Node) -> tuple[int, bool, int, str]:
        return (-self.guilty.get(node.name, 0), node.head, node.num_workers, node.name)

    def _smaller_sides(self, there: dict[str, Node]) -> list[Node]:
        """Of each part of the graph that hangs together."""
        links: dict[str, set[str]] = {}
        for one, others in self.pairs.items():
            for other in others:
                if one in there and other in there:
                    links.setdefault(one, set()).add(other)
                    links.setdefault(other, set()).add(one)
        found: list[Node] = []
        seen: set[str] = set()
        named = Counter(other for others in self.pairs.values() for other in others)
        for start in sorted(links):
            if start not in seen:
                near, far = _two_sides(start, links)
                seen.update(near, far)
                sides = [[there[name] for name in side] for side in (near, far)]
                lighter = self._weight(sides[0], named) < self._weight(sides[1], named)
                found += sides[0] if lighter else sides[1]
        return found

    def _weight(
        self, side: list[Node], named: Counter[str]
    ) -> tuple[bool, int, int, int, list[str]]:
        """The lightest is suspected: it has not the head, and few workers; then who was before."""
        by_others = sum(named[node.name] for node in side)
        guilty = sum(self.guilty.get(node.name, 0) for node in side)
        workers = sum(node.num_workers for node in side)
        names = [node.name for node in side]
        return (any(node.head for node in side), workers, -guilty, -by_others, names)


def _two_sides(start: str, links: dict[str, set[str]]) -> tuple[list[str], list[str]]:
    """Neighbours stand on different sides, as far as they can."""
    side = {start: 0}
    queue = [start]
    for one in queue:
        for other in sorted(links[one]):
            if other not in side:
                side[other] = 1 - side[one]
                queue.append(other)
    return [name for name in queue if not side[name]], [name for name in queue if side[name]]
