"""Another run that begins as a checkpoint of one: its files copied, its fingerprint with changes.

The copy keeps name, step and generation, which its files tell too; optimizer state and position in
the data are in it. It is a run of its own: nothing of it lies with the other, and the other is not
touched. What lost: a link to the files, which a retention of the other run's would take away.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from remesh.actors.checkpoints.looking import CheckpointTarget
from remesh.actors.checkpoints.origin import keep_words, kept_words
from remesh.actors.storage.storage_url import open_storage
from remesh.orchestrator.job.amendments import (
    SKIP,
    changes_to,
    flat,
    parted,
    skip_problem,
    skips_of,
    values_at,
    with_changes,
)
from remesh.orchestrator.job.curve import AMENDABLE, ORIGIN, Fingerprint, reason_of
from remesh.orchestrator.job.job import Job, parse_job
from remesh.orchestrator.job.overrides import put
from remesh.orchestrator.job.tables.run_tables import JobTable
from remesh.orchestrator.user_errors import UserError
from remesh.orchestrator.user_text import is_url, masked
from remesh.parallel.state.checkpoint import commit, file_path, read_manifest
from remesh.parallel.state.landing import verify
from remesh.parallel.state.root_manifest import CheckpointManifest, CheckpointRef, ShardFile
from remesh.parallel.state.storage import Storage

_RUN_BYTES = 32 * 2**20
# What shapes no curve, and stands in no fingerprint.
_UNTOLD = [
    'job.name = "branch"',
    'data.dir = "."',
    "train.steps = 1",
    "train.microbatch = 1",
    "elastic.max_workers = 1",
]
_NOT_OF_JOBS = ("data.digest", "leaves", SKIP, ORIGIN)


def branch(
    target: CheckpointTarget, name: str, overrides: Sequence[str], note: Callable[[str], None]
) -> str:
    """Begins the run beside the one it branches off; says how to train it.

    Cost: reads the checkpoint twice; memory for the largest of its files.
    Raises: UserError or CheckpointError, with no run begun.
    """
    _check_name(name)
    ref, place = target.named, _beside(target.place, name)
    manifest = read_manifest(target.storage, ref)
    fingerprint = _changed(manifest, target, overrides)
    storage = open_storage(place)
    if storage.list(""):
        raise UserError(f"{masked(place)} is not empty; branch off with another --as NAME")
    verify(target.storage, ref)
    for number, file in enumerate(manifest.files, start=1):
        _copy(target.storage, storage, ref, file)
        note(f"file {number} of {len(manifest.files)}: {file.size_bytes:,} bytes")
    if words := kept_words(target.storage):
        keep_words(storage, words)
    commit(storage, replace(manifest, fingerprint=fingerprint))
    command = _command(target, name, place, overrides)
    return f"{masked(place)} begins with {ref.name}; train it with: {command}"


def _changed(
    manifest: CheckpointManifest, target: CheckpointTarget, overrides: Sequence[str]
) -> Fingerprint:
    """Of what the run has trained, and what shall hold from its next step on."""
    for override in overrides:
        _check_key(put({}, override))
    first, amendments = parted(manifest.fingerprint)
    trained = tuple(one for one in amendments if one.step <= manifest.step)
    held = {**first, **values_at(trained, manifest.step)}
    wanted = _job(held, overrides).amendable
    problem = skip_problem(str(wanted[SKIP]), str(held[SKIP]), manifest.step)
    if problem:
        raise UserError(f"--set: {problem}")
    changes = changes_to(wanted, first, trained, manifest.step)
    origin = f"{_without_options(target.place)}/{manifest.ref.name}"
    return flat({**first, ORIGIN: origin}, with_changes(trained, changes, manifest.step))


def _job(held: Fingerprint, overrides: Sequence[str]) -> Job:
    """The job of a fingerprint. What shapes no curve is not known; it is not asked for either."""
    lines = [f"{key} = {json.dumps(held[key])}" for key in held if key not in _NOT_OF_JOBS]
    ranges = skips_of(str(held[SKIP])).ranges
    lines += [f"{SKIP} = {json.dumps([f'{first}..{last}' for first, last in ranges])}"]
    lines += _UNTOLD
    return parse_job("\n".join(lines), name="the run's fingerprint", overrides=overrides)


def _check_name(name: str) -> None:
    try:
        JobTable(name=name)
    except ValidationError:
        raise UserError(
            f"--as {name!r}: a name has 1 to 64 letters, digits, '.', '-' and '_', the first a "
            f"letter or a digit"
        ) from None


def _check_key(key: str) -> None:
    if key in AMENDABLE:
        return
    keys, reason = ", ".join(sorted(AMENDABLE)), reason_of(key)
    if reason:
        raise UserError(f"--set {key}: {reason}, which a branch takes over; it may change {keys}")
    raise UserError(f"--set {key}: a branch may change {keys}; give {key} to remesh run")


def _beside(place: str, name: str) -> str:
    """Where the run is, with another last name."""
    if not is_url(place):
        path = Path(place)
        named = path if path.name not in {"", ".."} else path.resolve()
        return str(named.parent / name)
    url, question, options = place.partition("?")
    kind, _, inner = url.rstrip("/").partition("://")
    parent, slash, _ = inner.rpartition("/")
    if not slash:
        raise UserError(
            f"{masked(url)} is all of its bucket, and a branch lies beside it; copy the run to a "
            f"path in the bucket first"
        )
    return f"{kind}://{parent}/{name}{question}{options}"


def _without_options(place: str) -> str:
    return masked(place.partition("?")[0] if is_url(place) else place)


def _copy(source: Storage, to: Storage, ref: CheckpointRef, file: ShardFile) -> None:
    path, room = file_path(ref, file), bytearray(file.size_bytes)
    for start in range(0, len(room), _RUN_BYTES):
        length = min(_RUN_BYTES, len(room) - start)
        room[start : start + length] = source.get_range(path, start, length)
    to.put(path, room)


def _command(target: CheckpointTarget, name: str, place: str, overrides: Sequence[str]) -> str:
    """How the branch is trained, with its place and what it was branched off with."""
    where = (f"url={place}", f"dir=runs/{name}") if is_url(place) else (f"dir={place}",)
    sets = [f"job.name={name}", *(f"checkpoint.{one}" for one in where), *overrides]
    words = ["remesh", "run", target.job or "JOB", *(f"--set={one}" for one in sets)]
    return masked(shlex.join(words))
