"""Degrees that somebody asked a live run for, and the meshes that it may have with them.

A run that was asked for `tp=2` goes on as if its job said so: the same rules, the same ladder, the
same words. Only the leaves stay, since they shape the curve. A degree that is named has no others
to fall to; what is not named is as the job says.

What lost: to ask for one mesh. After the loss of a node it would be none that there are workers
for, and nobody would know of it when they come back.
"""

import re
from dataclasses import asdict, dataclass, fields

from remesh.orchestrator.job.checks import POSSIBLE, rule_problems
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.planner import ladder_of
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count, masked
from remesh.parallel.plan.book.divisors import divisors

AUTO = "auto"

_DEGREE = re.compile(r"([a-z]+)=([1-9][0-9]{0,4}|auto)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutWish:
    """Degrees by axis; what is None is as the job says. `beside` is what the job said of all of
    them as they were asked for.
    """

    dp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    tp: int | None = None
    beside: str = ""

    @property
    def degrees(self) -> dict[str, int]:
        """Those that are asked for."""
        return {axis: degree for axis, degree in _by_axis(self).items() if degree is not None}

    def __str__(self) -> str:
        """Such as "pp=2 tp=2", empty for none."""
        return " ".join(f"{axis}={degree}" for axis, degree in self.degrees.items())


AXES = tuple(field.name for field in fields(LayoutWish) if field.name != "beside")


def wish_of(text: str, job: Job, before: LayoutWish | None = None) -> LayoutWish | None:
    """What is asked for by a text such as "tp=2,pp=auto", on top of what was asked for before.

    "auto" gives a degree back to the job, or all of them. None where nothing is left.
    Raises: UserError for a text that says no degrees.
    """
    named = parted(text)
    known = {} if named is None or before is None else _by_axis(before)
    wish = LayoutWish(**{**known, **(named or {})}, beside=said_by(job))
    return wish if wish.degrees else None


def asked(text: str) -> LayoutWish:
    """Beside no job that says anything. Raises: UserError for a text that says no degrees."""
    return LayoutWish(**(parted(text) or {}), beside="")


def parted(text: str) -> dict[str, int | None] | None:
    """The degrees of a text, None for one that is given back; None for "auto", all of them.

    Raises: UserError if it is no such text.
    """
    if text == AUTO:
        return None
    found: dict[str, int | None] = {}
    for part in text.split(","):
        match = _DEGREE.fullmatch(part.strip())
        if match is None or match[1] not in AXES or match[1] in found:
            raise UserError(
                f"--layout {masked(text)}: expected degrees of {', '.join(AXES)}, each once, such "
                f"as tp=2,pp=2, or auto"
            )
        found[match[1]] = None if match[2] == AUTO else int(match[2])
    return found


def said_by(job: Job) -> str:
    """The degrees of a job in words; a wish made beside others is older than these."""
    return " ".join(f"{axis}={getattr(job.parallel, axis)}" for axis in AXES)


def wished_job(job: Job, wish: LayoutWish | None) -> Job:
    """The job as if it said so. Raises: UserError if it may not, in the words of the rule book."""
    if wish is None:
        return job
    wished = job.shared_by(wish.degrees, job.batch_cut)
    of_the_book, others = rule_problems(wished, POSSIBLE), wished.problems(POSSIBLE)
    if problem := next(of_the_book, None) or _leaf_problem(wished) or next(others, None):
        raise UserError(problem)
    return wished


def wished_ladder(job: Job, wish: LayoutWish | None) -> Ladder:
    """Every mesh that its run may have then. Raises: UserError, as `wished_job`."""
    return ladder_of(wished_job(job, wish))


def kept(wish: LayoutWish | None, job: Job) -> LayoutWish | None:
    """The wish, unless a job says something else by now than as it was made."""
    return wish if wish is not None and wish.beside == said_by(job) else None


def _leaf_problem(job: Job) -> str | None:
    """Leaves were fixed at the first start of the run: more replicas than that have none."""
    leaves, parallel, together = job.num_leaves, job.parallel, job.replicas_together
    fixed = f"this run deals its batch in {count(leaves, 'leaf')}, fixed at its first start"
    if leaves % together:
        fitting = [ep for ep in divisors(leaves) if job.model.num_experts % ep == 0]
        cure = f"one of {', '.join(map(str, fitting))}" if fitting[1:] else "1"
        return f"parallel.ep = {parallel.ep}: {fixed}; use {cure}"
    if isinstance(parallel.dp, int) and parallel.dp > leaves:
        return f"parallel.dp = {parallel.dp}: {fixed}; use at most {leaves}"
    return None


def _by_axis(wish: LayoutWish) -> dict[str, int | None]:
    return {axis: degree for axis, degree in asdict(wish).items() if axis != "beside"}
