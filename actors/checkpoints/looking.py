"""Checkpoints looked at from outside of a run: found, listed and shown, without torch.

Only what is committed is read, so that it may be done while the run goes on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remesh.actors.storage.storage_url import open_storage
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import is_url
from remesh.parallel.optim.slots import slot_and_parameter
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import (
    committed,
    read_manifest,
    shard_header,
)
from remesh.parallel.state.headers import ShardHeader
from remesh.parallel.state.root_manifest import (
    CheckpointManifest,
    CheckpointRef,
    ShardFile,
    parse_name,
)
from remesh.parallel.state.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTarget:
    """A run's checkpoints; `ref` is the one that was named, None for all of them.

    `run` is the run as it was named and `job` its job file, if it was named by that; it lies at
    `place`.
    """

    run: str
    job: str
    place: str
    storage: Storage
    refs: tuple[CheckpointRef, ...]
    ref: CheckpointRef | None

    @property
    def named(self) -> CheckpointRef:
        """The one that was named, else the newest."""
        return self.ref or self.refs[0]


def find(target: str) -> CheckpointTarget:
    """RUN or RUN/STEP: a folder, a job file or a URL; a step is a number or a checkpoint's name.

    Raises: UserError if there is no such run or checkpoint.
    """
    named, question, options = target.partition("?") if is_url(target) else (target, "", "")
    run, step = _split(named)
    place = _place_of(run, question + options)
    storage = open_storage(place)
    refs = tuple(committed(storage))
    if not refs:
        raise UserError(
            f"{run}: there is no checkpoint; name a run's folder, such as runs/tiny, or its job "
            "file, if that has a checkpoint.url"
        )
    found = [ref for ref in refs if step in (str(ref.step), ref.name)]
    if step and not found:
        raise UserError(
            f"{run} has no checkpoint {step}; it has those of the steps "
            f"{', '.join(str(ref.step) for ref in reversed(refs))}"
        )
    return CheckpointTarget(
        run=run,
        job=run if Path(run).is_file() else "",
        place=place,
        storage=storage,
        refs=refs,
        ref=found[0] if step else None,
    )


def rows(target: CheckpointTarget) -> list[dict[str, Any]]:
    """One for each checkpoint, newest first, with the reason why it cannot be read if that is so.

    Cost: a manifest each; no tensor is read.
    """
    return [_row_of(target.storage, ref) for ref in target.refs]


def shown(target: CheckpointTarget) -> dict[str, Any]:
    """All that a checkpoint tells of itself. Cost: its manifest and the headers of its files."""
    ref, storage = target.named, target.storage
    manifest = read_manifest(storage, ref)
    headers = [shard_header(storage, ref, file) for file in manifest.files]
    return {
        **_row(manifest),
        "metrics": dict(manifest.metrics) or None,
        "dataset": manifest.data.digest,
        "bit_key": manifest.bit_key,
        "created_by": dict(manifest.created_by),
        "job": dict(manifest.fingerprint),
        "in_files": [_file_row(*pair) for pair in zip(manifest.files, headers, strict=True)],
        "tensors_by_their_fragments": _tensor_rows(headers),
    }


def _split(place: str) -> tuple[str, str]:
    """The run and the step, which is empty where none is named."""
    run, _, last = place.rstrip("/").rpartition("/")
    is_step = parse_name(last) is not None or (last.isdecimal() and not Path(place).is_dir())
    return (run or ".", last) if is_step else (place, "")


def _place_of(run: str, options: str) -> str:
    """The folder or the URL of its checkpoints."""
    if is_url(run):
        return run + options
    path = Path(run)
    if path.is_file():
        job = load_job(path)
        if job.checkpoint.url:
            return job.checkpoint.url
        path = job.run_dir
    if not path.is_dir():
        raise UserError(f"{run}: no such run; name its folder, such as runs/tiny, or a job file")
    return str(path)


def _row_of(storage: Storage, ref: CheckpointRef) -> dict[str, Any]:
    try:
        manifest = read_manifest(storage, ref)
    except CheckpointError as error:
        told = {"checkpoint": ref.name, "step": ref.step, "generation": ref.generation}
        return {**told, "reason": str(error)}
    return _row(manifest) | dict(manifest.metrics)


def _row(manifest: CheckpointManifest) -> dict[str, Any]:
    return {
        "checkpoint": manifest.ref.name,
        "step": manifest.step,
        "generation": manifest.generation,
        "sequences": manifest.data.position,
        "files": len(manifest.files),
        "bytes": sum(file.size_bytes for file in manifest.files),
    }


def _file_row(file: ShardFile, header: ShardHeader) -> dict[str, Any]:
    kind, _, digest = file.digest.rpartition(":")
    return {
        "name": file.name,
        "bytes": file.size_bytes,
        "fragments": len(header.parts),
        "digest": {kind: digest},
    }


def _tensor_rows(headers: Iterable[ShardHeader]) -> list[dict[str, Any]]:
    """A row for each parameter, with what the optimizer remembers of it beside it."""
    found: dict[str, dict[str, Any]] = {}
    for part in (part for header in headers for part in header.fragments):
        slot, name = slot_and_parameter(part.name)
        shape = "x".join(map(str, part.global_shape))
        row = found.setdefault(name, {"name": name, "shape": f"{shape} {part.dtype}"})
        key = slot or "fragments"
        row[key] = row.get(key, 0) + 1
    return [found[name] for name in sorted(found)]
