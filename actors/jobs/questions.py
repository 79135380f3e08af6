"""Questions to runs, asked where they are: as a small job that the head's job server starts.

It is for those who see the job server only: from beyond the network of a cluster neither the folder
of a run nor the address of its controller means anything. The job is the driver of no run; it reads
the folders, asks as a command there would, and writes one line with all answers.

A connection of Ray to the controller's actor was the alternative: it needs a Ray of the same
version here and every port of the cluster, and its first answer takes seconds longer.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, assert_never

from remesh.actors.jobs.cluster_jobs import Jobs, find_ray_job
from remesh.actors.run.reach import Answer, Gone, Reached, Unreachable, reach
from remesh.actors.run.status import read_status
from remesh.actors.run.stop_wish import STOP_LIMIT_S, stop_run
from remesh.orchestrator.user_errors import RemeshError, UnreachableError, UserError

KEY = "remesh_questions"
MARK = "remesh answers: "
ON_THE_WAY = "remesh does: "
JOB_LIMIT_S = 120.0  # a job starts within seconds, on busy cores within a minute
POLL_S = 0.2

# What a run is asked beside the paths of its controller.
WHOLE_STATUS = "the status, or what its journal tells"
STOP_AND_WAIT = "to stop, and for its last word"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a run is asked, or told where there is a `wish`.

    With a `submission`, the run of another one in this folder counts as gone.
    """

    run_dir: str
    path: str = "/status"
    wish: dict[str, Any] | None = None
    submission: str = ""


def ask_by_job(
    jobs: Jobs,
    questions: Sequence[Question],
    say: Callable[[str], object],
    *,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[Answer]:
    """An answer for each question. What is said meanwhile is passed on.

    Raises: UserError for what was refused; UnreachableError if there is no answer; RemeshError.
    """
    ray_id = f"remesh-asks-{secrets.token_hex(6)}"
    jobs.submit(ray_id, metadata_of(questions))
    lines = _JobLines(say)
    deadline_s = clock() + JOB_LIMIT_S
    if any(question.path == STOP_AND_WAIT for question in questions):
        deadline_s += STOP_LIMIT_S
    try:
        while not find_ray_job(jobs, ray_id).ended and clock() < deadline_s:
            lines.take(jobs.logs(ray_id))
            wait(POLL_S)
        lines.take(jobs.logs(ray_id))
    finally:
        with suppress(RemeshError):  # one that still runs, or a head that is gone
            jobs.delete(ray_id)
    return [_decoded(values) for values in lines.answers(len(questions))]


def metadata_of(questions: Sequence[Question]) -> dict[str, str]:
    return {KEY: json.dumps([asdict(question) for question in questions])}


def read_questions(metadata: Mapping[str, str] | None) -> list[Question] | None:
    """What a job was sent to ask, None for one that was sent for something else."""
    try:
        return [Question(**values) for values in json.loads((metadata or {})[KEY])]
    except (KeyError, TypeError, ValueError):
        return None


def answer_all(
    questions: Sequence[Question],
    write: Callable[[str], object],
    *,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """The job's own part: asks, and writes the answers as one line."""
    answers = [_encoded(question, write, wait) for question in questions]
    write(MARK + json.dumps(answers))


def ask_here(
    question: Question,
    say: Callable[[str], object],
    wait: Callable[[float], None] = time.sleep,
) -> Answer:
    """The answer, as it can be had on this host. Raises: RemeshError, of any kind."""
    run_dir = Path(question.run_dir)
    if question.path == "/status":
        return _reached_or_not(question)
    if question.path == WHOLE_STATUS:
        return Reached(answer=read_status(run_dir))
    if question.path == STOP_AND_WAIT:
        word = stop_run(run_dir, say, submission=question.submission, wait=wait)
        return Gone() if word is None else Reached(answer=word)
    return reach(run_dir, question.path, question.wish, submission=question.submission)


def _reached_or_not(question: Question) -> Answer:
    """Files that cannot be read are no reason to tell nothing of the other runs."""
    try:
        return reach(Path(question.run_dir), question.path, submission=question.submission)
    except UserError as error:
        return Unreachable(reason=str(error))


class _JobLines:
    """The lines of the job: what is said on the way, each once, and the answers."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._passed = 0
        self._last = "it wrote nothing"
        self._answers = ""

    def take(self, text: str) -> None:
        *lines, _ = text.split("\n")
        for line in lines[self._passed :]:
            if line.startswith(MARK):
                self._answers = line.removeprefix(MARK)
            elif line.startswith(ON_THE_WAY):
                self._say(line.removeprefix(ON_THE_WAY))
            elif line.strip():
                self._last = line
        self._passed = len(lines)

    def answers(self, number: int) -> list[dict[str, Any]]:
        """Raises: UnreachableError unless there are as many as were asked for."""
        with suppress(ValueError):
            found = json.loads(self._answers)
            if isinstance(found, list) and len(found) == number:
                return found
        raise UnreachableError(
            f"a job at the head was to ask the run and has not brought an answer: {self._last}; "
            f"try again, or look at the head's log"
        )


def _encoded(
    question: Question, write: Callable[[str], object], wait: Callable[[float], None]
) -> dict[str, Any]:
    try:
        answer = ask_here(question, lambda text: write(ON_THE_WAY + text), wait)
    except RemeshError as error:
        return {"error": str(error), "code": error.exit_code}
    match answer:
        case Reached(answer=told):
            return {"told": told}
        case Unreachable(reason=reason):
            return {"reason": reason}
        case Gone(died=died):
            return {"died": died}
        case _:
            assert_never(answer)


def _decoded(values: Mapping[str, Any]) -> Answer:
    match values:
        case {"told": told}:
            return Reached(answer=told)
        case {"reason": reason}:
            return Unreachable(reason=reason)
        case {"died": died}:
            return Gone(died=died)
        case _:
            kinds = {kind.exit_code: kind for kind in (UserError, UnreachableError)}
            kind = kinds.get(values.get("code", 0), RemeshError)
            raise kind(str(values.get("error", "the head answers in another way than expected")))
