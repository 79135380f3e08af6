"""Committing a checkpoint: the manifest is put if this controller still holds the run."""

import math
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version

from remesh.actors.orders import RunSpec
from remesh.actors.run.folder import RunFolder
from remesh.orchestrator.control.words.commands import Commit
from remesh.orchestrator.control.words.events import (
    CheckpointCommitted,
    CommitFailed,
    Event,
    StepsDone,
    WorkerParked,
)
from remesh.orchestrator.job.amendments import Amendments, flat
from remesh.orchestrator.job.curve import Fingerprint
from remesh.orchestrator.job.tables import CheckpointTable
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import commit, prune
from remesh.parallel.state.retention import Retention
from remesh.parallel.state.root_manifest import CheckpointManifest, DataPosition

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


def commit_checkpoint(
    folder: RunFolder,
    spec: RunSpec,
    command: Commit,
    loss: float | None,
    sync: Callable[[], None],
) -> CheckpointCommitted | CommitFailed:
    """Put the manifest, then remove what retention no longer keeps.

    `sync` makes the journal durable. It comes first: after a power cut no checkpoint may be there
    of whose steps the journal does not tell.
    """
    try:
        sync()
        newest_claim = folder.newest_claim()
        if newest_claim > spec.incarnation:
            error = f"start {newest_claim} of this run has taken over {folder.path}; this one ends"
            return _failed(command, error, fenced=True)
        ref = commit(folder.guarded, _manifest(spec, command, loss))
    except (CheckpointError, OSError) as failure:
        return _failed(command, str(failure), fenced=False)
    with suppress(CheckpointError, OSError):  # the checkpoint stands; the next one prunes again
        prune(folder.guarded, retention(spec.job.checkpoint), protect=[ref])
    return CheckpointCommitted(generation=command.generation, step=command.step, name=ref.name)


def retention(table: CheckpointTable) -> Retention:
    return Retention(last=table.keep, every=table.keep_every, best=table.keep_best)


def _manifest(spec: RunSpec, command: Commit, loss: float | None) -> CheckpointManifest:
    return CheckpointManifest(
        step=command.step,
        generation=command.generation,
        fingerprint=spec.fingerprint,
        bit_key=spec.job.bit_key,
        data=DataPosition(
            digest=spec.data_digest, position=command.step * spec.job.train.global_batch
        ),
        files=command.files,
        created_by={name: version(name) for name in ("remesh", "torch", "ray")},
        metrics={} if loss is None else {"loss": loss},
    )


def _failed(command: Commit, error: str, *, fenced: bool) -> CommitFailed:
    return CommitFailed(
        generation=command.generation, step=command.step, error=error, fenced=fenced
    )
