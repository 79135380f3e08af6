"""A run in numbers: for the driver's progress line, and for `remesh status`."""

import errno
import threading
from dataclasses import asdict, replace
from typing import Any

from remesh.actors.orders import RunSpec
from remesh.actors.run.journal_files import JournalWriter
from remesh.orchestrator.accounts.plain_values import plain
from remesh.orchestrator.accounts.view import View, view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.job.driver_words import RunStatus
from remesh.parallel.plan.layout import Layout

# What is wrong with a place for files, and can be mended there. Too many open files are not.
_OF_A_FOLDER = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENODEV,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
        errno.ESTALE,
    }
)


class RunView:
    """Reads the machine under `lock`, which whoever changes it holds as well."""

    def __init__(self, machine: Controller, spec: RunSpec, writer: JournalWriter) -> None:
        self.lock = threading.Lock()
        self._machine = machine
        self._spec = spec
        self._writer = writer
        self._failure: Exception | None = None

    def fail(self, error: Exception) -> None:
        """The controller itself cannot go on: from now on the run has failed."""
        self._failure = error

    def run_status(self, seen: int) -> RunStatus:
        with self.lock:
            view = view_of(self._machine)
        status = self._status(view, seen)
        return failed(status, self._failure) if self._failure else status

    def _status(self, view: View, seen: int) -> RunStatus:
        return RunStatus(
            phase=view.phase,
            step=view.step,
            steps=view.steps,
            loss=view.last.did.loss if view.last else None,
            tokens_per_s=view.last.did.tokens / view.last.step_s if view.last else None,
            layout=layout_text(view.layout),
            generation=view.generation,
            workers=sum(worker.rank is not None for worker in view.workers),
            announcements=tuple(self._writer.announcements[seen:]),
            ended=view.ended,
            status=view.phase if view.ended else "",
            reason=view.reason,
            user_error=view.user_error,
        )

    def status(self) -> dict[str, Any]:
        """It names the run: whoever asks may have reached somebody else at the port."""
        with self.lock:
            return {"run": self._spec.run, **status_of(view_of(self._machine))}


def failed(status: RunStatus, error: Exception) -> RunStatus:
    """The status of a run whose controller met this error. The user can mend a full disk."""
    of_folder = isinstance(error, OSError) and error.errno in _OF_A_FOLDER
    what = "the run's folder cannot be used" if of_folder else "the controller failed"
    return replace(
        status,
        ended=True,
        status="failed",
        reason=f"{what}: {error}; the same command resumes at the last checkpoint",
        user_error=of_folder,
    )


def status_of(view: View) -> dict[str, Any]:
    """The view as plain JSON values."""
    values: dict[str, Any] = plain(asdict(view))
    values["layout"] = layout_text(view.layout)
    for entry, life in zip(values["generations"], view.generations, strict=True):
        entry["layout"] = layout_text(life.layout)
    return values


def layout_text(layout: Layout | None) -> str:
    """The degrees above 1, such as "dp=4"; dp always stands."""
    if layout is None:
        return ""
    degrees = asdict(layout)
    return " ".join(f"{axis}={n}" for axis, n in degrees.items() if n > 1 or axis == "dp")
