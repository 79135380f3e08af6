"""One mesh that a run may have, and the workers that it takes together."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from remesh.parallel.plan.cut import Cut, Held
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.schedules.catalogue import PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Workers that a mesh takes together, and whether all of them have to be on one node."""

    workers: int = 1
    on_one_node: bool = True

    def room(self, nodes: int, places: int) -> int:
        """How many there can be on `nodes` nodes with so many places each."""
        if self.on_one_node:
            return nodes * (places // self.workers)
        return nodes * places // self.workers

    def said(self, sharing: str) -> str:
        """Such as "tp groups of 2 on one node each"; "single workers"."""
        if self.workers == 1:
            return "single workers"
        where = " on one node each" if self.on_one_node else ""
        return f"{sharing} groups of {self.workers}{where}"

    def __str__(self) -> str:
        return self.said("tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One mesh: its degrees, how the state falls into parts, and who computes what when.

    A `schedule` is one of a replica's pipeline, which `cut` tells. `leaves` counts those of each
    replica; they are dealt evenly if it is empty. Rungs with the same `bit_key` train to the same
    bits.
    """

    layout: Layout
    cut: Cut = field(default_factory=Cut)
    unit: Unit = field(default_factory=Unit)
    schedule: str = PLAIN
    leaves: tuple[int, ...] = ()
    bit_key: str = ""

    @property
    def workers(self) -> int:
        return self.layout.world_size

    @property
    def num_units(self) -> int:
        return self.workers // self.unit.workers

    @property
    def stages(self) -> int:
        """Units of a replica, each of which has a stage of its pipeline."""
        return self.layout.pp

    @property
    def shards(self) -> int:
        """How many ranks share one copy of the dense state."""
        return self.cut.shards

    def units(self) -> Iterator[range]:
        """The ranks of each unit."""
        for first in range(0, self.workers, self.unit.workers):
            yield range(first, first + self.unit.workers)

    def stage_of(self, held: Held) -> int | None:
        """Whose layers these are in its pipelines, None if layers are cut in another way there."""
        ways = [(cut.pp, cut.chunks, cut.folded, cut.layers) for cut in (held.cut, self.cut)]
        return held.stage if ways[0] == ways[1] else None

    def held_by(self, rank: int) -> Held:
        """What this rank holds of the state."""
        return self.cut.held_by(self.layout, rank)

    def is_first(self, rank: int) -> bool:
        """Whether some part that it holds no lower rank holds."""
        return self.cut.is_first(self.layout, rank)

    def most_leaves(self, num_leaves: int) -> int:
        """Those of the replica that has most of them, where they are dealt evenly."""
        together = self.layout.replicas_together
        return -(-num_leaves // together // (self.layout.dp // together))


def changed_bits(before: str, after: str) -> str:
    """In which keys two bit keys differ, such as "tp was 2 and is 1"."""
    old, new = keys_of(before), keys_of(after)
    return ", ".join(
        f"{key} was {old.get(key, 'unset')} and is {new.get(key, 'unset')}"
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    )


def keys_of(bit_key: str) -> dict[str, str]:
    """The keys of one, and their values as texts."""
    return dict(pair.partition("=")[::2] for pair in bit_key.split())
