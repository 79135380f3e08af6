"""Which parts of the state are there, and whether they are all of it, told by ranks alone."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.records import Held, Member

Parts = Iterator[tuple[int, Held]]  # the step whose state it is, and the part of it


def is_whole(parts: Collection[Held]) -> bool:
    """Whether those of one way to cut the state are all of it: cuts of two ways do not meet."""
    for tp, shard_size in {held.cut for held in parts}:
        ranks = [held.rank for held in parts if held.cut == (tp, shard_size)]
        if len({(rank % tp, rank // tp % shard_size) for rank in ranks}) == tp * shard_size:
            return True
    return False


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
