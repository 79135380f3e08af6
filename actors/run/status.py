"""A run seen from another shell: from its live controller, else from its journal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

from remesh.actors.history.journal_reading import history_of
from remesh.actors.history.replay import replayed
from remesh.actors.run.contact import ANSWER_LIMIT_S
from remesh.actors.run.reach import Answer, Gone, Reached, Unreachable, reach
from remesh.actors.run.told import NOBODY, told_of
from remesh.orchestrator.accounts.standing import standing_of
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.job.driver_words import INTERRUPTED
from remesh.orchestrator.user_errors import UnreachableError, UserError


def read_status(run_dir: Path) -> dict[str, Any]:
    """Where the run stands. Raises: UserError if there is no run in this folder."""
    answer = reach(run_dir, "/status")
    match answer:
        case Reached(answer=told):
            return {key: value for key, value in told.items() if key != "id"}
        case Unreachable(reason=reason):
            return _from_journal(run_dir, "unreachable", reason)
        case Gone():
            gone = "its controller is gone; the same remesh run resumes it"
            return {**_from_journal(run_dir, INTERRUPTED, gone), **NOBODY}
        case _:
            assert_never(answer)


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """What was decided and why, oldest first, over all starts of the run, with tracebacks.

    What damage hides stands as an event where it begins. Raises: as read_status.
    """
    found: list[dict[str, Any]] = []
    history = history_of(run_dir)
    for start in history.starts:
        found += start.told()
        if start.damage is not None:
            found.append({"at_s": start.newest_s(), "text": str(start.damage)})
    at_s = found[-1]["at_s"] if found else 0.0
    return [*found, *({"at_s": at_s, "text": str(stray)} for stray in history.strays)]


def tell_run(
    run_dir: Path, path: str, wish: Mapping[str, Any], limit_s: float = ANSWER_LIMIT_S
) -> str:
    """What the live controller answers to a wish. Raises: UserError, UnreachableError."""
    return text_from(reach(run_dir, path, wish, limit_s=limit_s), str(run_dir))


def text_from(answer: Answer, run: str) -> str:
    """The sentence that was told. Raises: UserError if the run is gone, UnreachableError."""
    match answer:
        case Reached(answer=told):
            return str(told["text"])
        case Unreachable(reason=reason):
            raise UnreachableError(reason)
        case Gone():
            raise UserError(f"{run}: no run is alive here; start it with: remesh run JOB")
        case _:
            assert_never(answer)


def _from_journal(run_dir: Path, phase: str, reason: str) -> dict[str, Any]:
    """The last word of the controller. Without an end it is this phase, for this reason."""
    history = history_of(run_dir)
    done = replayed(history.starts)
    view = view_of(Controller(history.starts[-1].options, done.state))
    status = told_of(view, standing_of(view, done.tally))
    if not status["ended"]:
        status |= {"phase": phase, "reason": reason}
    if history.damage:
        status["damage"] = [str(damage) for damage in history.damage]
    return {"run": run_dir.absolute().name, "folder": str(run_dir), **status}
