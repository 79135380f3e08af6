"""Committing a checkpoint: the manifest is put if this controller still holds the run."""

from contextlib import suppress
from importlib.metadata import version

from remesh.actors.orders import RunSpec
from remesh.actors.run_folder import RunFolder
from remesh.orchestrator.control.commands import Commit
from remesh.orchestrator.control.events import CheckpointCommitted, CommitFailed
from remesh.parallel.errors import CheckpointError
from remesh.parallel.state.checkpoint import commit, prune
from remesh.parallel.state.manifest import CheckpointManifest, DataPosition


def commit_checkpoint(
    folder: RunFolder, spec: RunSpec, command: Commit
) -> CheckpointCommitted | CommitFailed:
    """Put the manifest, then remove what retention no longer keeps."""
    try:
        newest_claim = folder.newest_claim()
        if newest_claim > spec.incarnation:
            error = f"start {newest_claim} of this run has taken over {folder.path}; this one ends"
            return _failed(command, error, fenced=True)
        ref = commit(folder.storage, _manifest(spec, command))
    except (CheckpointError, OSError) as failure:
        return _failed(command, str(failure), fenced=False)
    with suppress(CheckpointError, OSError):  # the checkpoint stands; the next one prunes again
        prune(folder.storage, spec.job.checkpoint.keep, protect=[ref])
    return CheckpointCommitted(generation=command.generation, step=command.step, name=ref.name)


def _manifest(spec: RunSpec, command: Commit) -> CheckpointManifest:
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
    )


def _failed(command: Commit, error: str, *, fenced: bool) -> CommitFailed:
    return CommitFailed(
        generation=command.generation, step=command.step, error=error, fenced=fenced
    )
