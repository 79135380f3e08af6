"""Which parts of the state are there, and whether they are all of it, element by element.

The state is so many elements that each cut has a whole number of them; a part is those that a rank
of its layout would have.
"""

from collections.abc import Collection, Iterator, Mapping
from math import lcm

from remesh.orchestrator.control.commands import Form
from remesh.orchestrator.control.records import Held


def is_whole(parts: Collection[Held]) -> bool:
    if not parts:
        return False
    tensors = lcm(*(held.layout.tp for held in parts))
    shards = lcm(*(held.shard_size for held in parts))
    there = {
        (tensor, shard)
        for held in parts
        for tensor in _span(held.rank % held.layout.tp, held.layout.tp, tensors)
        for shard in _span(held.rank // held.layout.tp % held.shard_size, held.shard_size, shards)
    }
    return len(there) == tensors * shards


def within_reach(
    form: Form, held: Mapping[str, int], members: Collection[str]
) -> Iterator[tuple[int, Held]]:
    """Steps and parts that living members of an old mesh hold, and the next can have.

    `held` has their steps. What `members` of the next hold is there. A tp group that has lost
    nobody can always be taken; who is left of another one may find nobody on its node.
    """
    layout = form.layout
    for first in range(0, len(form.members), layout.tp):
        group = form.members[first : first + layout.tp]
        steps = {held.get(member.worker) for member in group}
        intact = len(steps) == 1 and None not in steps
        for member in group:
            if member.worker in held and (intact or member.worker in members):
                part = Held(layout=layout, shard_size=form.shard_size, rank=member.rank)
                yield held[member.worker], part


def _span(index: int, cuts: int, elements: int) -> range:
    size = elements // cuts
    return range(index * size, (index + 1) * size)
