"""Jobs on a cluster that runs already: submitted once, found by id, stopped, resumed.

A submission with an id is idempotent: the cluster refuses a second job of the same name, so whoever
loses a race, or the reply to his own request, looks again and finds the job that is there.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from remesh.orchestrator.job.submission import Submission, read_metadata, submission_difference
from remesh.orchestrator.user_errors import RemeshError, UnreachableError, UserError

ENDED = ("finished", "stopped", "failed")
PASSED_ON = (2, 4, 143)
TRIES = 3
RETRY_S = 1.0
# Ray kills a driver that takes longer to stop; its controller goes on stopping by itself.
STOP_LIMIT_S = 120
POLL_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJob:
    """A job as the cluster tells it. `exit_code` is its driver's, None if that had none."""

    ray_id: str
    status: str
    message: str = ""
    started_s: float = 0.0
    exit_code: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def code(self) -> int:
        """The exit code of a command that waited for it: 143 stopped, 3 failed without a word."""
        match self.status:
            case "finished":
                return 0
            case "stopped":
                return 143
            case _:
                return self.exit_code if self.exit_code in PASSED_ON else 3


class Jobs(Protocol):
    """The job server of a cluster. Every call raises UnreachableError if it does not answer."""

    def submit(self, ray_id: str, metadata: dict[str, str]) -> None: ...
    def list(self) -> list[RayJob]: ...
    def stop(self, ray_id: str) -> None: ...
    def delete(self, ray_id: str) -> None: ...
    def logs(self, ray_id: str) -> str: ...

    def last_lines(self, ray_id: str) -> str:
        """The end of the log, however long that is; empty where it cannot be had."""

    def room(self) -> int | None:
        """How many workers the cluster can hold as it is; None if it may grow, or does not say."""

    def tail(self, ray_id: str) -> Iterator[str]:
        """The log from its start, and what is added, until the job or the connection ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A submission with its job on the cluster. `new` says that it was put there just now."""

    submission: Submission
    job: RayJob
    new: bool = False


def attempts(jobs: Jobs) -> list[Attempt]:
    """The newest attempt of each submission, oldest first."""
    newest: dict[str, Attempt] = {}
    for job in jobs.list():
        submission = read_metadata(job.metadata)
        if submission is None or submission.ray_id != job.ray_id:
            continue
        known = newest.get(submission.id)
        if known is None or known.submission.attempt < submission.attempt:
            newest[submission.id] = Attempt(submission=submission, job=job)
    return sorted(newest.values(), key=lambda attempt: attempt.job.started_s)


def find(jobs: Jobs, submission_id: str) -> Attempt:
    """The newest attempt. Raises: UserError if there is none."""
    found = _newest(jobs, submission_id)
    if found is None:
        known = ", ".join(attempt.submission.id for attempt in attempts(jobs)) or "none"
        raise UserError(f"no job {submission_id} on this cluster; there are: {known}")
    return found


def find_ray_job(jobs: Jobs, ray_id: str) -> RayJob:
    """Raises: UserError if there is none."""
    for job in jobs.list():
        if job.ray_id == ray_id:
            return job
    raise UserError(f"no job {ray_id} on this cluster any more; it was deleted")


def submit(
    jobs: Jobs, submission: Submission, *, wait: Callable[[float], None] = time.sleep
) -> Attempt:
    """The job of this id, started here if it was not there yet.

    Raises: UserError if another job has the id, or if the cluster can never hold this one.
    """
    there = _newest(jobs, submission.id)
    if there:
        return _same(there, submission)
    _check_room(jobs, submission)
    return _start(jobs, submission, wait)


def resume(
    jobs: Jobs, submission_id: str, *, wait: Callable[[float], None] = time.sleep
) -> Attempt:
    """A new attempt at a job that was stopped or has failed; any other as it is."""
    last = find(jobs, submission_id)
    if last.job.status not in ("stopped", "failed"):
        return last
    _check_room(jobs, last.submission)
    following = replace(last.submission, attempt=last.submission.attempt + 1)
    return _start(jobs, following, wait)


def stop(jobs: Jobs, submission_id: str, *, wait: Callable[[float], None] = time.sleep) -> Attempt:
    """The job once it has ended, saved at a step boundary.

    Raises: RemeshError if it has not within the time that Ray gives it and some more.
    """
    running = find(jobs, submission_id)
    if running.job.ended:
        return running
    jobs.stop(running.job.ray_id)
    for _ in range(round((STOP_LIMIT_S + 10) / POLL_S)):
        found = find(jobs, submission_id)
        if found.job.ended:
            return found
        wait(POLL_S)
    raise RemeshError(f"{submission_id} did not stop within {STOP_LIMIT_S + 10} s")


def _newest(jobs: Jobs, submission_id: str) -> Attempt | None:
    found = (each for each in attempts(jobs) if each.submission.id == submission_id)
    return next(found, None)


def _check_room(jobs: Jobs, submission: Submission) -> None:
    needed, room = submission.job().elastic.min_workers, jobs.room()
    if room is not None and needed > room:
        raise UserError(
            f"elastic.min_workers = {needed} and the cluster has room for {room}, one on each CPU, "
            f"with no autoscaler to add any; add nodes first, or lower it"
        )


def _same(there: Attempt, submission: Submission) -> Attempt:
    difference = submission_difference(there.submission, submission)
    if difference:
        raise UserError(
            f"{submission.id} is another job on this cluster: {difference}; "
            f"submit this one with another --id"
        )
    return there


def _start(jobs: Jobs, submission: Submission, wait: Callable[[float], None]) -> Attempt:
    """Puts it there; if that fails, looks whether it is there all the same."""
    metadata = submission.metadata()
    for remaining in reversed(range(TRIES)):
        try:
            jobs.submit(submission.ray_id, metadata)
        except RemeshError as error:
            there = _look(jobs, submission)
            if there:
                return _same(there, submission)
            if not remaining or not isinstance(error, UnreachableError):
                raise
            wait(RETRY_S)
        else:
            break
    job = RayJob(ray_id=submission.ray_id, status="pending", metadata=metadata)
    return Attempt(submission=submission, job=job, new=True)


def _look(jobs: Jobs, submission: Submission) -> Attempt | None:
    """The same attempt or a later one, None if it is not there or nobody answers."""
    try:
        there = _newest(jobs, submission.id)
    except UnreachableError:
        return None
    return there if there and there.submission.attempt >= submission.attempt else None
