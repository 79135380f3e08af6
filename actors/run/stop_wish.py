"""A run that is stopped from another shell: at a step boundary, saved, and waited for.

Its driver is not needed: a run whose driver is gone, or not there yet, stops as well.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, assert_never

from remesh.actors.run.reach import Gone, Reached, Unreachable, reach
from remesh.actors.run.status import read_status
from remesh.orchestrator.user_errors import RemeshError, UnreachableError, UserError

STOP_LIMIT_S = 900.0  # a long step and a long save
REACH_LIMIT_S = 20.0  # Ray starts a dead controller again within seconds
PROGRESS_S = 10.0
POLL_S = 0.3


class Stop:
    """One wish to stop a run, until it has come true. What happens meanwhile is said."""

    def __init__(
        self,
        run_dir: Path,
        submission: str,
        say: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        self._run_dir = run_dir
        self._say = say
        self._submission = submission
        self._clock = clock
        self._began_s = self._reached_s = self._said_s = clock()
        self._told = False
        self._gone = 0
        self._where = "not heard of"

    @property
    def was_told(self) -> bool:
        return self._told

    def is_over(self) -> bool:
        """Asks the run, and tells it the wish as soon as it can be reached.

        Raises: UnreachableError, RemeshError for what takes too long.
        """
        answer = reach(self._run_dir, "/status", submission=self._submission)
        match answer:
            case Reached(answer=status):
                self._reached_s = self._clock()
                self._tell(status)
            case Unreachable(reason=reason):
                if self._clock() - self._reached_s > REACH_LIMIT_S:
                    raise UnreachableError(reason)
            case Gone():
                # A start that has its journal says in the next moment how it can be reached.
                self._gone += 1
                return self._told or self._gone > 1
            case _:
                assert_never(answer)
        if self._clock() - self._began_s > STOP_LIMIT_S:
            raise RemeshError(
                f"{self._run_dir} has not stopped within {STOP_LIMIT_S:.0f} s: {self._where}; "
                f"it goes on stopping, which this shows: remesh status {self._run_dir}"
            )
        return False

    def _tell(self, status: dict[str, Any]) -> None:
        self._where = f"{status['phase']} at step {status['step']}"
        if status["ended"]:
            return
        if not self._told:
            with suppress(UserError):  # it has ended just now
                self._wish()
        elif self._clock() - self._said_s > PROGRESS_S:
            self._said_s = self._clock()
            self._say(self._where)

    def _wish(self) -> None:
        told = reach(self._run_dir, "/stop", {}, submission=self._submission)
        if isinstance(told, Reached):
            self._told = True
            self._say(str(told.answer["text"]))


def stop_run(
    run_dir: Path,
    say: Callable[[str], object],
    *,
    submission: str = "",
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """The last word of the run once it has ended, None if it was not alive.

    Raises: UnreachableError if nobody answers; RemeshError if it does not stop, or dies meanwhile.
    """
    stop = Stop(run_dir, submission, say, clock)
    while not stop.is_over():
        wait(POLL_S)
    return last_word(run_dir) if stop.was_told else None


def last_word(run_dir: Path) -> str:
    """How a run that is gone has ended. Raises: RemeshError if it has died."""
    status = read_status(run_dir)
    word = f"{status['phase']} at step {status['step']}: {status['reason']}"
    if not status["ended"]:
        raise RemeshError(f"{run_dir} has not stopped but died: {word}")
    return word
