"""A run from its start to its end, as the command sees it: poll, show, pass on a wish to stop."""

import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

from remesh.orchestrator.job.driver_words import RunStatus

POLL_S = 0.2
CALM_POLLS = 5  # one of so many is enough in training: ranks report once a second
STOPPING = "stopping at the next step boundary; once more to stop at once"


class DrivenRun(Protocol):
    """A started run. `stop` asks for a saved end; `close` ends whatever is left of it.

    `flaw` is why the last checkpoint cannot be read back, None if it can.
    """

    def poll(self) -> RunStatus: ...
    def stop(self) -> None: ...
    def report(self) -> dict[str, Any]: ...
    def flaw(self) -> str | None: ...
    def close(self) -> None: ...


class Display(Protocol):
    def show(self, status: RunStatus) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


class Wish(Protocol):
    """The first signal that asked for an end, None as long as nobody did."""

    signal_number: int | None


def drive(
    run: DrivenRun, display: Display, wish: Wish, *, wait: Callable[[float], None] = time.sleep
) -> RunStatus:
    """The last status of a run that has ended. The first wish to stop is passed on once.

    Each poll costs the processors that train some milliseconds, so in training there are few.
    """
    passed_on = False
    while not (status := run.poll()).ended:
        display.show(status)
        if wish.signal_number is not None and not passed_on:
            passed_on = True
            display.note(STOPPING)
            run.stop()
        for _ in range(_pauses(status)):
            wait(POLL_S)
            if wish.signal_number is not None:
                break
    display.show(status)
    return status


def _pauses(status: RunStatus) -> int:
    """How many until the next poll: one where there may be news, and shortly before the end."""
    if status.phase.lower() != "running" or status.wait is not None or status.left_s is None:
        return 1
    left = int(status.left_s / POLL_S) - CALM_POLLS  # of which a report may be so old
    return min(max(left, 1), CALM_POLLS)


def exit_code(last: RunStatus, signal_number: int | None) -> int:
    """0 finished, 2 user error, 3 failed, 143 stopped by others, 128 + the signal that ended it."""
    match last.status:
        case "finished":
            return 0
        case "stopped" if signal_number is not None:
            return 128 + signal_number
        case "stopped" | "preempted":
            return 128 + signal.SIGTERM
        case _:
            return 2 if last.user_error else 3
