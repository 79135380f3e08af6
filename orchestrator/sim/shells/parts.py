"""Which parts of the state are there, and whether they are all of it."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from remesh.orchestrator.control.words.commands import Form
from remesh.orchestrator.control.words.records import Member
from remesh.parallel.plan.cut import Held

HeldAtSteps = Iterator[tuple[int, Held]]


def is_whole(parts: Collection[Held]) -> bool:
    """Whether those of one way to cut the state are all of it: cuts of two ways do not meet."""
    return any(
        cut.is_whole({part for held in parts if held.cut == cut for part in held.parts})
        for cut in {held.cut for held in parts}
    )


def held_by_members(form: Form, held: Mapping[str, int], members: Collection[str]) -> HeldAtSteps:
    """The parts that members of the next mesh hold from an old one. `held` has their steps."""
    return _parts(form, held, (m for m in form.members if m.worker in members))


def held_by_whole_groups(form: Form, held: Mapping[str, int]) -> HeldAtSteps:
    """The parts on units of an old mesh that lost nobody: these can always be taken.

    Who is left of another unit may find nobody on its node to make up one with.
    """
    whole = (
        ranks
        for ranks in form.rung.units()
        if len({held.get(form.members[rank].worker) for rank in ranks}) == 1
    )
    return _parts(form, held, (form.members[rank] for ranks in whole for rank in ranks))


def _parts(form: Form, held: Mapping[str, int], members: Iterable[Member]) -> HeldAtSteps:
    for member in members:
        if member.worker in held:
            yield held[member.worker], form.rung.held_by(member.rank)
