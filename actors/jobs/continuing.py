"""Where a start takes its run up: from which checkpoint, and with which values from there on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remesh.actors.jobs.finishing import proven_from
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.orchestrator.job.amendments import (
    SKIP,
    Amendments,
    changes_to,
    flat,
    parted,
    skip_problem,
    values_at,
    with_changes,
)
from remesh.orchestrator.job.curve import ORIGIN, Fingerprint
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The `job` is the continuation of the run that is there, if there is one.

    `first` is the fingerprint of the run's first start, `amendments` are those since. Those whose
    steps are still to come may be taken back by this start, or changed: what is left are `kept`,
    and `added` are new. `checkpoints` are those to start from, newest first; later ones are
    `abandoned`. `flaws` are sentences about newer ones that cannot be read back.
    """

    job: Job
    first: Fingerprint
    checkpoints: tuple[CheckpointState, ...]
    abandoned: tuple[CheckpointState, ...] = ()
    amendments: Amendments = ()
    kept: Amendments = ()
    added: Amendments = ()
    flaws: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        return step_of(self.checkpoints)

    @property
    def fingerprint(self) -> Fingerprint:
        return flat(self.first, with_changes(self.kept, self.added, self.step))

    @property
    def as_begun(self) -> Job:
        """The job with the skips that the run began with."""
        return self.job.having({SKIP: str(self.first[SKIP])})

    @property
    def origin(self) -> str:
        """The checkpoint that the run branched off, empty for none."""
        return str(self.first.get(ORIGIN, ""))

    def notices(self) -> Iterator[str]:
        """What the user is told of it, besides of what is added."""
        yield from self.flaws
        if self.abandoned:
            steps = ", ".join(str(one.step) for one in reversed(self.abandoned))
            yield f"back to {self.checkpoints[0].name}; abandoned are the checkpoints of {steps}"
        for one in self.amendments:
            replaced = any(new.key == one.key and new.step <= one.step for new in self.added)
            if one not in self.kept and not replaced:
                yield f"taken back before it was trained: {one}"


def continuation_of(
    job: Job, data_digest: str, folder: RunFolder, options: RunOptions
) -> Continuation:
    """Raises: UserError if this is another run, or one that cannot go on so.

    Cost: reads the checkpoint that ends the run, if it seems to have done all its steps.
    """
    if options.fresh:
        return Continuation(job=job, first=job.fingerprint(data_digest), checkpoints=())
    before = folder.fingerprint()
    kept, abandoned = _divided(folder.checkpoints(), options.from_step)
    if not kept:
        folder.check_kept()
    folder.bits()  # refused here if it is damaged, with nothing started
    if before is None:
        first = job.fingerprint(data_digest)
        folder.check(first)
        return Continuation(job=job, first=first, checkpoints=kept)
    first, amendments = parted(before)
    held = {**first, **values_at(amendments, step_of(kept) + 1)}
    folder.check(job.continuing(held).fingerprint(data_digest))
    kept, flaws = proven_from(folder, kept, job.train.steps)
    step = step_of(kept)
    held = {**first, **values_at(amendments, step + 1)}
    job = job.continuing(held)
    changes = changes_to(job.amendable, first, amendments, step)
    problem = skip_problem(str(job.amendable[SKIP]), str(held[SKIP]), step)
    if problem:
        raise UserError(problem)
    total = with_changes(amendments, changes, step)
    return Continuation(
        job=job,
        first=first,
        checkpoints=kept,
        abandoned=abandoned,
        amendments=amendments,
        kept=tuple(one for one in total if one in amendments),
        added=tuple(one for one in total if one not in amendments),
        flaws=flaws,
    )


def check_nothing_changes(finished: Continuation) -> None:
    """Raises: UserError if there is something to change, and no step to train with it."""
    if finished.added:
        one = finished.added[0]
        raise UserError(
            f"all {count(finished.job.train.steps, 'step')} are trained already, and {one.key} = "
            f"{one.new} would hold from step {one.step} on; raise train.steps too, or go back with "
            f"--from-step"
        )


def step_of(checkpoints: Sequence[CheckpointState]) -> int:
    return checkpoints[0].step if checkpoints else 0


def _divided(
    checkpoints: tuple[CheckpointState, ...], from_step: int | None
) -> tuple[tuple[CheckpointState, ...], tuple[CheckpointState, ...]]:
    """Those up to the step, of which there has to be one, and later ones."""
    if from_step is None:
        return checkpoints, ()
    steps = [one.step for one in checkpoints]
    if from_step not in steps:
        known = ", ".join(map(str, reversed(steps))) or "none"
        raise UserError(
            f"--from-step {from_step}: there is no checkpoint of this step; those that are kept: "
            f"{known}"
        )
    first = steps.index(from_step)
    return checkpoints[first:], checkpoints[:first]
