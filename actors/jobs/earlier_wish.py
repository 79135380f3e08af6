"""What a run was asked of its degrees while it lived, and whether its next start keeps to it.

The newest word counts. A start with the same degrees in its job file says nothing new, and goes on
as the run was asked to; one whose job file says others has been told so later than that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remesh.actors.history.newest_journal import read_newest
from remesh.actors.history.replay import carried_by
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.control.words.carried import Carried
from remesh.orchestrator.job.curve import bits_change
from remesh.orchestrator.job.job import BITS, Job, bit_key_of
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.rung import keys_of
from remesh.orchestrator.plan.wish import kept, said_by, wished_job, wished_ladder
from remesh.orchestrator.user_errors import UserError

DEGREES = frozenset(f"parallel.{axis}" for axis in BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithWish:
    """The meshes of a start, what it takes up from the one before, and what is said of a wish."""

    ladder: Ladder
    carried: Carried
    notices: tuple[str, ...] = ()


def taken_up(
    job: Job, folder: RunFolder, ladder: Ladder, within: Callable[[Ladder], Ladder]
) -> WithWish:
    """From the newest start of the run in this folder, also what the bits then are.

    `ladder` is that of the job; `within` leaves of one what there is room for, or refuses it.
    """
    carried = carried_by(read_newest(folder.path).starts)
    change, carried = with_bits(job, folder.bits(), carried)
    taken = with_wish(job, carried, ladder, within)
    return replace(taken, notices=(*taken.notices, change)) if change else taken


def with_wish(
    job: Job, carried: Carried, ladder: Ladder, within: Callable[[Ladder], Ladder]
) -> WithWish:
    """What holds of what the start before hands on."""
    wish = carried.layout
    if wish is None:
        return WithWish(ladder=ladder, carried=carried)
    over = f"{wish}, which was asked for, holds no longer"
    dropped = WithWish(ladder=ladder, carried=replace(carried, layout=None))
    if kept(wish, job) is None:
        why = f"{over}: the job says {said_by(job)}, and said {wish.beside}"
        return replace(dropped, notices=(why,))
    try:
        wished = within(wished_ladder(job, wish))
    except UserError as error:
        return replace(dropped, notices=(f"{over}: {error}",))
    said = f"it goes on with {wish}, which was asked for; remesh scale --layout auto gives it back"
    return WithWish(ladder=wished, carried=carried, notices=(said,))


def as_wished(
    job: Job, run_folder: Path, within: Callable[[Ladder], Ladder | None]
) -> tuple[Job, str | None]:
    """The job as the next start of the run in this folder takes it, and what is to be said of that.

    What a start would refuse, or drop, it says itself.
    """
    try:
        wish = kept(carried_by(read_newest(run_folder).starts).layout, job)
        wished = wished_job(job, wish)
        fits = within(wished_ladder(job, wish))
    except (UserError, OSError):
        return job, None
    if wish is None or fits is None:
        return job, None
    gives_back = "remesh scale --layout auto gives it back"
    return wished, f"{wish}, which the run was asked for, holds as if its job said so; {gives_back}"


def with_bits(
    job: Job, before: Mapping[str, Any] | None, carried: Carried
) -> tuple[str | None, Carried]:
    """What to say of the bits of a start, `before` which the job had others; None if they stay.

    Of which degrees they are the run says itself as it forms a mesh of others than its newest one:
    in what is handed on to it nothing else differs.
    """
    if not carried.bit_key:
        return bits_change(before, job.bits), carried
    newest, now = keys_of(carried.bit_key), job.bits
    degrees = {key: newest.get(key, now[key]) for key in DEGREES}
    had = None if before is None else {**before, **degrees}
    handed_on = {key: degrees.get(key, value) for key, value in now.items()}
    return bits_change(had, handed_on), replace(carried, bit_key=bit_key_of(handed_on))
