"""A run seen from another shell: from its live controller, else from its journal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remesh.actors.run.contact import ANSWER_LIMIT_S, ask, tell
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.journal_files import Journal, read_journals
from remesh.actors.run.run_view import status_of
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.user_errors import UserError


def read_status(run_dir: Path) -> dict[str, Any]:
    """Where the run stands. Raises: UserError if there is no run in this folder."""
    contact = RunFolder(run_dir).contact()
    live = ask(contact, "/status") if contact else None
    return live or _from_journal(run_dir)


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """What was decided and why, oldest first, over all starts of the run, with tracebacks.

    Raises: as read_status.
    """
    return [entry for journal in _journals(run_dir) for entry in journal.told()]


def tell_run(
    run_dir: Path, path: str, wish: Mapping[str, Any], limit_s: float = ANSWER_LIMIT_S
) -> str:
    """What the live controller answers to a wish. Raises: UserError, UnreachableError."""
    contact = RunFolder(run_dir).contact()
    if contact is None:
        raise UserError(f"{run_dir}: no run is alive here; start it with: remesh run JOB")
    return tell(contact, path, wish, limit_s)


def _from_journal(run_dir: Path) -> dict[str, Any]:
    """The last word of a controller that is gone: without an end, the run was interrupted."""
    status = status_of(view_of(_journals(run_dir)[-1].replay()))
    if not status["ended"]:
        status["phase"] = "interrupted"
        status["reason"] = "its controller is gone; the same remesh run resumes it"
    return status


def _journals(run_dir: Path) -> list[Journal]:
    journals = read_journals(run_dir)
    if not journals:
        raise UserError(f"{run_dir}: there is no run here; start one with: remesh run JOB")
    return journals
