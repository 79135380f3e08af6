"""A run seen from another shell: from its live controller, else from its journal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remesh.actors.run.contact import ask, tell
from remesh.actors.run.folder import RunFolder
from remesh.actors.run.journal_reading import History, read_history
from remesh.actors.run.replay import replayed
from remesh.actors.run.told import NOBODY, told_of
from remesh.orchestrator.accounts.standing import standing_of
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.user_errors import UserError


def read_status(run_dir: Path) -> dict[str, Any]:
    """Where the run stands. Raises: UserError if there is no run in this folder."""
    contact = RunFolder(run_dir).contact()
    live = ask(contact, "/status") if contact else None
    if live is None:
        return _from_journal(run_dir)
    del live["id"]
    return live


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """What was decided and why, oldest first, over all starts of the run. Raises as read_status.

    What damage hides stands as an event where it begins.
    """
    found: list[dict[str, Any]] = []
    history = _history(run_dir)
    for start in history.starts:
        found += start.announcements()
        if start.damage is not None:
            found.append({"at_s": start.newest_s(), "text": str(start.damage)})
    at_s = found[-1]["at_s"] if found else 0.0
    return [*found, *({"at_s": at_s, "text": str(stray)} for stray in history.strays)]


def tell_run(run_dir: Path, path: str, wish: Mapping[str, Any]) -> str:
    """What the live controller answers to a wish. Raises: UserError, UnreachableError."""
    contact = RunFolder(run_dir).contact()
    if contact is None:
        raise UserError(f"{run_dir}: no run is alive here; start it with: remesh run JOB")
    return tell(contact, path, wish)


def _from_journal(run_dir: Path) -> dict[str, Any]:
    """The last word of a controller that is gone: without an end, the run was interrupted."""
    history = _history(run_dir)
    done = replayed(history.starts)
    view = view_of(Controller(history.starts[-1].options, done.state))
    status = told_of(view, standing_of(view, done.tally))
    if not status["ended"]:
        status["phase"] = "interrupted"
        status["reason"] = "its controller is gone; the same remesh run resumes it"
    if history.damage:
        status["damage"] = [str(damage) for damage in history.damage]
    return {"run": run_dir.absolute().name, "folder": str(run_dir), **status, **NOBODY}


def _history(run_dir: Path) -> History:
    """Raises: UserError if no start of a run can be read."""
    history = read_history(run_dir)
    if history.starts:
        return history
    if history.strays:
        raise UserError(f"{history.strays[0]}; the same remesh run resumes at the last checkpoint")
    raise UserError(f"{run_dir}: there is no run here; start one with: remesh run JOB")
