"""The runs of submissions: what each does beside its driver, and its end.

A run may live without a driver: while it is orphaned, and while the next driver is still pending.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

from remesh.actors.jobs import cluster_jobs
from remesh.actors.jobs.cluster_jobs import Attempt, Jobs
from remesh.actors.jobs.job_logs import progress_of
from remesh.actors.jobs.questions import STOP_AND_WAIT, Question, ask_by_job, ask_here
from remesh.actors.run.reach import Answer, Gone, Reached, Unreachable
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import RemeshError, UnreachableError, UserError

MOST_ASKED = 100  # of the newest, at once
# With these the driver of a run has seen its end.
_SEEN_ENDED = (0, 2, 3, 143)


def stop_submission(
    jobs: Jobs,
    submission_id: str,
    say: Callable[[str], object],
    *,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """How the submission stands once nothing of its run is left, and no driver to start it again.

    The run comes first: its driver then sees it end, and one that is still about to take it up
    finds nothing. Raises: UserError if there is none; UnreachableError if the run may live;
    RemeshError.
    """
    before = cluster_jobs.find(jobs, submission_id)
    if before.job.ended:
        return _stop_the_run(jobs, before, say, wait) or _as_it_is(before)
    word = None
    with suppress(UnreachableError):  # then its driver may reach it
        word = _stop_the_run(jobs, before, say, wait)
    after = cluster_jobs.stop(jobs, submission_id, wait=wait)
    if not is_over(after):  # it has begun a run meanwhile, or taken up the one that was silent
        word = _stop_the_run(jobs, after, say, wait) or word
    return word or progress_of(jobs.last_lines(after.job.ray_id)).reason or after.job.status


def _as_it_is(attempt: Attempt) -> str:
    return f"is {attempt.job.status}, attempt {attempt.submission.attempt}"


def run_states(jobs: Jobs, attempts: Sequence[Attempt]) -> dict[str, Answer]:
    """What the run of each submission answers, by its id, but for those that are over for sure.

    Cost: a job on the cluster, if a run does not answer from here.
    """
    states: dict[str, Answer] = {}
    silent: list[Question] = []
    for attempt in [each for each in attempts if not is_over(each)][-MOST_ASKED:]:
        with suppress(UserError):  # a job of another version, which its driver refuses
            question = _question(attempt)
            answer = ask_here(question, _say_nothing)
            if isinstance(answer, Reached):
                states[question.submission] = answer
            else:
                silent.append(question)
    return states | _asked_by_job(jobs, silent)


def named_run(
    jobs: Jobs, target: Path | None, path: str, wish: dict[str, Any] | None = None
) -> Question:
    """A question to the run of a submission, by its id, of a job file, or in a folder there.

    Raises: UserError if none is named.
    """
    if target is None:
        raise UserError("--address: name the run by its id, its job file, or its folder there")
    if target.is_file():
        target = load_job(target).run_dir
    elif len(target.parts) == 1 and not target.is_absolute() and not target.is_dir():
        return replace(_question(cluster_jobs.find(jobs, str(target)), path), wish=wish)
    return Question(run_dir=str(target.absolute()), path=path, wish=wish)


def _stop_the_run(
    jobs: Jobs, attempt: Attempt, say: Callable[[str], object], wait: Callable[[float], None]
) -> str | None:
    """The last word of the run, None if it was gone. Who cannot reach it here asks the head."""
    question = _question(attempt, STOP_AND_WAIT)
    here = ask_here(_question(attempt), say)
    if isinstance(here, Reached):
        found = ask_here(question, say, wait)
    elif is_over(attempt):
        return None
    else:
        (found,) = ask_by_job(jobs, [question], say, wait=wait)
    match found:
        case Reached(answer=word):
            return str(word)
        case Unreachable(reason=reason):
            raise UnreachableError(reason)
        case Gone():
            return None
        case _:
            assert_never(found)


def _asked_by_job(jobs: Jobs, questions: Sequence[Question]) -> dict[str, Answer]:
    """A list without what the runs do is better than none."""
    if not questions:
        return {}
    try:
        answers = ask_by_job(jobs, questions, _say_nothing)
    except RemeshError as error:
        answers = [Unreachable(reason=str(error))] * len(questions)
    return {question.submission: each for question, each in zip(questions, answers, strict=True)}


def is_over(attempt: Attempt) -> bool:
    """Whether a driver has seen the end of the run."""
    job = attempt.job
    return job.status == "finished" or (job.ended and job.exit_code in _SEEN_ENDED)


def _question(attempt: Attempt, path: str = "/status") -> Question:
    submission = attempt.submission
    return Question(run_dir=str(submission.job().run_dir), path=path, submission=submission.id)


def _say_nothing(_text: str) -> None:
    """Nobody waits for long."""
