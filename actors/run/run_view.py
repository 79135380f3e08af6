"""A run in numbers: for the driver's progress line, and for `remesh status`."""

import errno
import threading
import time
from dataclasses import replace
from typing import Any

from remesh.actors.history.journal_writer import JournalWriter
from remesh.actors.orders import RunSpec
from remesh.actors.run.told import progress_of, told_of
from remesh.orchestrator.accounts.standing import Standing, standing_of
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.accounts.view import View, view_of
from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.job.driver_words import RunStatus

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

    def __init__(
        self, machine: Controller, spec: RunSpec, writer: JournalWriter, tally: Tally
    ) -> None:
        self.lock = threading.Lock()
        self._machine = machine
        self._spec = spec
        self._writer = writer
        self._tally = tally
        self._failure: Exception | None = None

    def fail(self, error: Exception) -> None:
        """The controller itself cannot go on: from now on the run has failed."""
        self._failure = error

    def run_status(self, seen: int) -> RunStatus:
        view, standing = self._looked_at()
        told = replace(
            progress_of(view, standing, time.time()),
            announcements=self._writer.announced(seen),
            run=self._spec.job.name,
            folder=self._spec.folder,
        )
        return failed(told, self._failure) if self._failure else told

    def status(self) -> dict[str, Any]:
        """`id` is the run's own: whoever asks may have reached somebody else at the port."""
        view, standing = self._looked_at()
        return {
            "id": self._spec.run,
            "run": self._spec.job.name,
            "folder": self._spec.folder,
            **told_of(view, standing),
        }

    def _looked_at(self) -> tuple[View, Standing]:
        with self.lock:
            view = view_of(self._machine)
            return view, standing_of(view, self._tally)


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
