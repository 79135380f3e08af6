"""A run seen from another shell: from its live controller, else from its journal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

from remesh.actors.run.journal_files import Journal, read_journals
from remesh.actors.run.reach import Answer, Gone, Reached, Unreachable, reach
from remesh.actors.run.run_view import status_of
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.user_errors import UnreachableError, UserError


def read_status(run_dir: Path) -> dict[str, Any]:
    """Where the run stands. Raises: UserError if there is no run in this folder."""
    answer = reach(run_dir, "/status")
    match answer:
        case Reached(answer=status):
            told: dict[str, Any] = status
            return told
        case Unreachable(reason=reason):
            return _from_journal(run_dir, "unreachable", reason)
        case Gone():
            gone = "its controller is gone; the same remesh run resumes it"
            return _from_journal(run_dir, "interrupted", gone)
        case _:
            assert_never(answer)


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """What was decided and why, oldest first, over all starts of the run. Raises as read_status."""
    return [entry for journal in _journals(run_dir) for entry in journal.announcements()]


def tell_run(run_dir: Path, path: str, wish: Mapping[str, Any]) -> str:
    """What the live controller answers to a wish. Raises: UserError, UnreachableError."""
    return text_from(reach(run_dir, path, wish), str(run_dir))


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
    status = status_of(view_of(_journals(run_dir)[-1].replay()))
    if not status["ended"]:
        status |= {"phase": phase, "reason": reason}
    return status


def _journals(run_dir: Path) -> list[Journal]:
    journals = read_journals(run_dir)
    if not journals:
        raise UserError(f"{run_dir}: there is no run here; start one with: remesh run JOB")
    return journals
