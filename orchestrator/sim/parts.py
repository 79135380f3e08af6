"""Which parts of the state are there, and whether they are all of it, element by element.

The state is so many elements that each cut has a whole number of them; a part is those that a rank
of its layout would have.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import lcm

from remesh.orchestrator.control.commands import Form
from remesh.orchestrator.control.records import Held, Member

Parts = Iterator[tuple[int, Held]]  # the step whose state it is, and the part of it


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


def held_by(form: Form, held: Mapping[str, int], members: Collection[str]) -> Parts:
    """The parts that members of the next mesh hold from an old one. `held` has their steps."""
    return _parts(form, held, (m for m in form.members if m.worker in members))


def held_by_whole_groups(form: Form, held: Mapping[str, int]) -> Parts:
    """The parts on tp groups of an old mesh that lost nobody: these can always be taken.

    Who is left of another group may find nobody on its node to make up one with.
    """
    tp = form.layout.tp
    groups = [form.members[first : first + tp] for first in range(0, len(form.members), tp)]
    steps = [{held.get(member.worker) for member in group} for group in groups]
    whole = [g for g, found in zip(groups, steps, strict=True) if len(found) == 1]
    return _parts(form, held, (member for group in whole for member in group))


def _parts(form: Form, held: Mapping[str, int], members: Iterable[Member]) -> Parts:
    for member in members:
        if member.worker in held:
            part = Held(layout=form.layout, shard_size=form.shard_size, rank=member.rank)
            yield held[member.worker], part


def _span(index: int, cuts: int, elements: int) -> range:
    size = elements // cuts
    return range(index * size, (index + 1) * size)
