"""Committing a checkpoint: the manifest is put if this controller still holds the run."""

import logging
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from remesh.actors.orders import RunSpec
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.control.words.commands import Commit, Form
from remesh.orchestrator.control.words.events import (
    CheckpointCommitted,
    CommitFailed,
    Event,
    StepsDone,
    WorkerParked,
)
from remesh.orchestrator.job.amendments import Amendments, flat
from remesh.orchestrator.job.curve import Fingerprint
from remesh.orchestrator.job.tables.run_tables import CheckpointTable
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import commit, go_back, prune
from remesh.parallel.state.retention import Retention
from remesh.parallel.state.root_manifest import CheckpointManifest, CheckpointRef, DataPosition
from remesh.parallel.threads import heard_thread

MAX_HANGING = 4  # commits at a time

_MAX_LOSSES = 10_000


class LossesByStep:
    """The losses of the newest steps, by which checkpoints are the best ones; only finite ones are.

    A controller that has taken over does not know those that the one before was told.
    """

    def __init__(self) -> None:
        self._of_step: dict[int, float] = {}

    def note(self, event: Event) -> None:
        if isinstance(event, StepsDone | WorkerParked):
            for record in event.records:
                self._of_step.pop(record.step, None)
                if math.isfinite(record.did.loss):
                    self._of_step[record.step] = record.did.loss
        while len(self._of_step) > _MAX_LOSSES:
            del self._of_step[next(iter(self._of_step))]

    def at(self, step: int) -> float | None:
        return self._of_step.get(step)


class ToldFingerprint:
    """The fingerprint that the run's folder and its checkpoints tell, with all amendments.

    Nobody trains with a change that it does not tell: then the run could go on without it.
    """

    def __init__(self, folder: RunFolder, first: Fingerprint, amendments: Amendments) -> None:
        self.told = flat(first, amendments)
        self._first = first
        self._folder = folder

    def tell(self, amendments: Amendments) -> None:
        """Raises: OSError with nothing told."""
        fingerprint = flat(self._first, amendments)
        if fingerprint != self.told:
            self._folder.amend(fingerprint)
            self.told = fingerprint


class Commits:
    """Commits checkpoints, each in a thread of its own: storage that never answers one of them
    holds up no later one, up to a few that hang.

    `told` hears how each came out. `stands` says whether the run still stands on a step of a
    generation, `sync` makes the journal durable, and `prove` does so wherever it is kept, which
    takes longer. `newest` is the step of the newest checkpoint that there may be.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        told: Callable[[Event], object],
        stands: Callable[[int, int], bool],
        sync: Callable[[], None],
        prove: Callable[[], None],
        newest: float,
    ) -> None:
        self._folder = folder
        self._told = told
        self._stands = stands
        self._sync = sync
        self._prove = prove
        self._lock = threading.Lock()
        self._running: set[tuple[int, int]] = set()
        self._newest = newest
        self._done = -1
        self._marks: list[CheckpointRef] = []

    def begin(self, spec: RunSpec, form: Form) -> None:
        """A mesh starts: what was saved of later steps than it starts from is abandoned, and where
        checkpoints are, a mark says so. The journal is durable before anybody trains on, and the
        mark before the next commit.
        """
        if form.from_step < self._newest:
            mark = CheckpointRef(step=form.from_step, generation=form.generation, start=spec.start)
            with self._lock:
                self._marks.append(mark)
            with suppress(OSError):  # the commit says so
                self._sync()
            heard_thread(self._mark, name="mark").start()
        self._newest = form.from_step
        self._done = min(self._done, form.from_step)

    def ask(self, spec: RunSpec, command: Commit, loss: float | None) -> None:
        """CheckpointCommitted or CommitFailed follows, unless the run goes back behind it."""
        self._newest = max(self._newest, command.step)
        key = (command.generation, command.step)
        with self._lock:
            hanging = len(self._running) >= MAX_HANGING and key not in self._running
            if not hanging:
                self._running.add(key)
        if hanging:
            text = f"{MAX_HANGING} commits before it have had no answer from the storage yet"
            self._told(_failed(command, text))
            return
        job = partial(self._run, spec, command, loss)
        heard_thread(job, name=f"commit {command.step}").start()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _run(self, spec: RunSpec, command: Commit, loss: float | None) -> None:
        try:
            outcome = self._outcome(spec, command, loss)
        except Exception as error:
            logging.getLogger(__name__).exception("a checkpoint could not be committed")
            outcome = _failed(command, f"{type(error).__name__}: {error}")
        if isinstance(outcome, CheckpointCommitted):
            self._done = max(self._done, outcome.step)
        with self._lock:
            self._running.discard((command.generation, command.step))
        if outcome is not None:
            self._told(outcome)

    def _outcome(
        self, spec: RunSpec, command: Commit, loss: float | None
    ) -> CheckpointCommitted | CommitFailed | None:
        try:
            self._put_marks()
        except OSError as error:
            return _failed(command, str(error))
        stands = partial(self._counts, command)
        guards = Guards(self._prove, stands)
        outcome = commit_checkpoint(self._folder, spec, command, loss, guards)
        return outcome if isinstance(outcome, CheckpointCommitted) or stands() else None

    def _counts(self, command: Commit) -> bool:
        """Once a newer one is there, retention has swept the files of those before it."""
        newest = command.step > self._done
        return newest and self._stands(command.generation, command.step)

    def _mark(self) -> None:
        with suppress(OSError):  # the next commit tries again, and says so
            self._put_marks()

    def _put_marks(self) -> None:
        with self._lock:
            marks = tuple(self._marks)
        for mark in marks:
            go_back(self._folder.guarded, mark)
        with self._lock:
            self._marks = [mark for mark in self._marks if mark not in marks]


@dataclass(frozen=True, slots=True)
class Guards:
    """What has to hold for a commit: `sync` makes the journal durable, and `stands` says whether
    the run still stands on what was saved.
    """

    sync: Callable[[], None]
    stands: Callable[[], bool] = lambda: True


class _OvertakenError(CheckpointError):
    """Another start holds the run."""


def commit_checkpoint(
    folder: RunFolder, spec: RunSpec, command: Commit, loss: float | None, guards: Guards
) -> CheckpointCommitted | CommitFailed:
    """Put the manifest, then remove what retention no longer keeps.

    The journal is made durable first: after a power cut no checkpoint may be there of whose steps
    it does not tell. Whether this start still holds the run is asked again when all files have been
    looked at: that takes long, and the storage may stand still meanwhile.
    """

    def check() -> None:
        newest = folder.newest_claim()
        if newest > spec.incarnation:
            raise _OvertakenError(overtaken(folder, newest))
        if not guards.stands():
            raise CheckpointError("the run has gone back behind it meanwhile")

    try:
        guards.sync()
        check()
        ref = commit(folder.guarded, _manifest(spec, command, loss), check)
    except (CheckpointError, OSError) as failure:
        return _failed(command, str(failure), fenced=isinstance(failure, _OvertakenError))
    with suppress(CheckpointError, OSError):  # the checkpoint stands; the next one prunes again
        prune(folder.guarded, retention(spec.job.checkpoint), protect=[ref])
    return CheckpointCommitted(generation=command.generation, step=command.step, name=ref.name)


def overtaken(folder: RunFolder, newest_claim: int) -> str:
    """The last word of a start that another one has taken the run from."""
    return f"start {newest_claim} of this run has taken over {folder.path}; this one ends"


def retention(table: CheckpointTable) -> Retention:
    return Retention(last=table.keep, every=table.keep_every, best=table.keep_best)


def _manifest(spec: RunSpec, command: Commit, loss: float | None) -> CheckpointManifest:
    return CheckpointManifest(
        step=command.step,
        generation=command.generation,
        start=spec.start,
        fingerprint=spec.fingerprint,
        bit_key=spec.job.bit_key,
        data=DataPosition(
            digest=spec.data_digest, position=command.step * spec.job.train.global_batch
        ),
        files=command.files,
        created_by={name: version(name) for name in ("remesh", "torch", "ray")},
        metrics={} if loss is None else {"loss": loss},
    )


def _failed(command: Commit, error: str, *, fenced: bool = False) -> CommitFailed:
    return CommitFailed(
        generation=command.generation, step=command.step, error=error, fenced=fenced
    )
