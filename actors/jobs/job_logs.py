"""What a driver has written, to its end: each line once, whatever happens to the connection.

The log can only be read from its start. After a gap it is, and what was passed on before is left
out by counting characters.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from remesh.actors.jobs.cluster_jobs import Jobs, RayJob, find_ray_job
from remesh.orchestrator.user_errors import UnreachableError

RETRY_S = 0.5
GAP_LIMIT_S = 120.0

Emit = Callable[[str], object]


class Output:
    """Passes text on once, however often the log is read again from its `start`."""

    def __init__(self, ray_id: str, emit: Emit) -> None:
        self._emit = emit
        self._passed = 0
        self._at = 0
        # Before that Ray writes lines of its own.
        self._mark = f"Running entrypoint for job {ray_id}: "
        self._preamble: str | None = ""

    def start(self) -> None:
        self._at = 0

    def take(self, text: str) -> None:
        self._at += len(text)
        if self._at > self._passed:
            news = text[self._passed - self._at :]
            self._passed = self._at
            self._pass_on(news)

    def _pass_on(self, text: str) -> None:
        if self._preamble is not None:
            self._preamble += text
            _, mark, rest = self._preamble.partition(self._mark)
            _, newline, text = rest.partition("\n")
            if not (mark and newline):
                return
            self._preamble = None
        if text:
            self._emit(text)


def print_logs(jobs: Jobs, ray_id: str, emit: Emit) -> None:
    """What there is now."""
    Output(ray_id, emit).take(jobs.logs(ray_id))


def follow(
    jobs: Jobs,
    ray_id: str,
    emit: Emit,
    *,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> RayJob:
    """The job in its final state, once all that it has written is passed on.

    Raises: UnreachableError after two minutes without an answer, for the job may still run.
    """
    output = Output(ray_id, emit)
    answered_s = clock()
    while True:
        try:
            _tail(jobs, ray_id, output)
            job = find_ray_job(jobs, ray_id)
            output.start()
            output.take(jobs.logs(ray_id))
        except UnreachableError:
            if clock() - answered_s > GAP_LIMIT_S:
                raise
        else:
            if job.ended:
                return job
            answered_s = clock()
        wait(RETRY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """How far a driver has come, by its own words; None and empty where it says nothing."""

    step: int | None = None
    reason: str = ""


def progress_of(text: str) -> LogPosition:
    """From the lines of a driver, the newest that say it."""
    steps = _STEP.findall(text)
    notes = _NOTE.findall(text)
    step = int(steps[-1].replace(",", "")) if steps else None
    return LogPosition(step=step, reason=notes[-1] if notes else "")


_MOMENT = r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )?"
_STEP = re.compile(
    rf"{_MOMENT}(?:> (?:finished|failed|stopped) at )?step ([\d,]+)", re.MULTILINE | re.ASCII
)
_NOTE = re.compile(rf"{_MOMENT}(?:> |remesh: )(.*)$", re.MULTILINE)


def _tail(jobs: Jobs, ray_id: str, output: Output) -> None:
    """Follows until the job or the connection ends. A server that lets nobody follow is asked."""
    output.start()
    try:
        for text in jobs.tail(ray_id):
            output.take(text)
    except UnreachableError:
        return
