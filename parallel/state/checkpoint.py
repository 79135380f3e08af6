"""Checkpoints on storage: commit, find, prune; without torch (reading.py reads tensors).

A checkpoint is a folder `step-S.gen-G.start-N` of shards, and it exists from the moment when its
manifest does. Shards may be written by many ranks in any order and be left half done by a crash:
without a manifest the folder is nobody's checkpoint. No file of it is ever written over: another
start or generation of the run writes in a folder of its own, however late. Writing to a temporary
folder and renaming it would do the same on a disk, but object stores cannot rename.

Where a start or a generation begins, a mark in a folder of its own says from which step: what older
ones have saved of later steps is abandoned, also what they save after that. So is what a newer one
has trained anew, of which its checkpoints tell. The newest checkpoint is that of the newest start
and generation that have one which is not abandoned: the names of files tell it all.
"""

import errno
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from remesh.parallel.plan.errors import CheckpointError, OtherFormatError
from remesh.parallel.state.fragments import cover_problems
from remesh.parallel.state.headers import ShardHeader, read_header
from remesh.parallel.state.retention import Retention, retained
from remesh.parallel.state.root_manifest import (
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    CheckpointRef,
    ShardFile,
    decode_manifest,
    encode_manifest,
    is_complete,
    is_shard_file_name,
    parse_name,
)
from remesh.parallel.state.storage import Storage

GONE_BACK = "gone-back.json"

_PREFIX = "step-"
_NO_FILE = frozenset({errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP, errno.ENOTDIR})


def commit(
    storage: Storage, manifest: CheckpointManifest, check: Callable[[], object] = lambda: None
) -> CheckpointRef:
    """Makes the files a checkpoint, if all are there and make up whole tensors; twice does no harm.

    `check` raises if that is not to be any more; it comes right before the manifest is put.

    Cost: three small reads a file; the bytes of the tensors are not read.
    Raises: CheckpointError, with nothing put; what `check` raises.
    """
    ref = manifest.ref
    if not is_complete(manifest.files):
        names = ", ".join(file.name for file in manifest.files) or "no files"
        raise CheckpointError(f"cannot commit {ref.name}: of all writers' files it has {names}")
    headers = [_present(storage, ref, file) for file in manifest.files]
    check_cover(ref, headers)
    encoded = encode_manifest(manifest)
    check()
    if storage.put_if_absent(ref.manifest_path, encoded):
        return ref
    if storage.get(ref.manifest_path) != encoded:
        raise CheckpointError(
            f"{ref.name} is committed already, with other files; a checkpoint is never replaced"
        )
    return ref


def committed(storage: Storage) -> list[CheckpointRef]:
    """Every checkpoint, newest first, that is not abandoned.

    Foreign files and folders without a manifest do not count.
    """
    return _committed(_folders(storage))


def go_back(storage: Storage, begun: CheckpointRef) -> None:
    """From now on the run stands on `begun.step`, from which the start and generation go on."""
    storage.put_if_absent(f"{begun.name}/{GONE_BACK}", b"{}\n")


def newest_numbers(storage: Storage) -> tuple[int, int]:
    """The newest start and the newest generation that have left anything here, 0 for none."""
    refs = _folders(storage).keys()
    starts, generations = (ref.start for ref in refs), (ref.generation for ref in refs)
    return max(starts, default=0), max(generations, default=0)


def read_manifest(storage: Storage, ref: CheckpointRef) -> CheckpointManifest:
    """Raises: CheckpointError that names the file and the cure."""
    try:
        # No more of a file that cannot be one is read than shows that.
        encoded = storage.get_range(ref.manifest_path, 0, MAX_MANIFEST_BYTES + 1)
        manifest = decode_manifest(encoded)
    except OSError as error:
        raise lost(ref, "manifest.json", error) from None
    except OtherFormatError as error:
        raise CheckpointError(
            f"checkpoint {ref.name} cannot be read: manifest.json: {error}"
        ) from None
    except CheckpointError as error:
        raise unreadable(ref, "manifest.json", str(error)) from None
    if manifest.ref != ref:
        raise unreadable(ref, "manifest.json", f"it is the one of {manifest.ref.name}")
    return manifest


def prune(storage: Storage, keep: Retention | int, protect: Iterable[CheckpointRef] = ()) -> None:
    """Deletes all but what `keep` retains, what is abandoned, and what failed attempts left.

    A number is that of the newest intact ones to keep. The newest intact one stays in any case, and
    so do those in `protect`. Intact is judged by the manifest and by the sizes of the files.
    Foreign files are never touched. A manifest goes before its shards: a crash in between leaves an
    attempt for the next call, not a bad checkpoint.
    """
    policy = Retention(last=keep, way_back=False) if isinstance(keep, int) else keep
    folders = _folders(storage)
    newest_first = _committed(folders)
    kept = _kept(storage, newest_first, policy) | set(protect)
    done = {ref for ref in folders if ref.manifest_path in folders[ref]}
    attempts, abandoned = set(folders) - done, done - set(newest_first)
    # An attempt is over if a checkpoint that is newer both in step and in lineage exists.
    over = {ref for ref in attempts if any(_supersedes(newer, ref) for newer in newest_first)}
    for ref in sorted((over | abandoned | set(newest_first)) - kept):
        for path in _deletion_order(ref, folders[ref]):
            storage.delete(path)


def discard_attempt(storage: Storage, ref: CheckpointRef) -> None:
    """Deletes what an attempt has left that nobody goes on with, unless it is committed."""
    paths = storage.list(f"{ref.name}/")
    if ref.manifest_path not in paths:
        for path in _deletion_order(ref, paths):
            storage.delete(path)


def _folders(storage: Storage) -> dict[CheckpointRef, list[str]]:
    folders: dict[CheckpointRef, list[str]] = defaultdict(list)
    for path in storage.list(_PREFIX):
        folder, _, file_name = path.partition("/")
        ref = parse_name(folder)
        if ref and file_name:
            folders[ref].append(path)
    return folders


def _committed(folders: dict[CheckpointRef, list[str]]) -> list[CheckpointRef]:
    """Newest first. What is older counts up to the step from which the newer ones trained."""
    found: list[CheckpointRef] = []
    limit = newer_limit = math.inf
    last: tuple[int, int] | None = None
    for ref in sorted(folders, reverse=True):
        if (ref.start, ref.generation) != last:
            limit, last = newer_limit, (ref.start, ref.generation)
        is_committed = ref.manifest_path in folders[ref]
        if is_committed and ref.step <= limit:
            found.append(ref)
        if is_committed or f"{ref.name}/{GONE_BACK}" in folders[ref]:
            newer_limit = min(newer_limit, ref.step)
    return found


def _kept(
    storage: Storage, newest_first: list[CheckpointRef], policy: Retention
) -> set[CheckpointRef]:
    damaged: set[CheckpointRef] = set()
    num_intact = 0
    for ref in newest_first:
        if num_intact == max(policy.last, 1):
            break
        if _intact(storage, ref):
            num_intact += 1
        else:
            damaged.add(ref)
    metrics = _metrics(storage, newest_first) if policy.best else {}
    return damaged | retained(set(newest_first) - damaged, policy, metrics)


def _metrics(
    storage: Storage, refs: Iterable[CheckpointRef]
) -> dict[CheckpointRef, Mapping[str, float]]:
    metrics = {}
    for ref in refs:
        with suppress(CheckpointError):
            metrics[ref] = read_manifest(storage, ref).metrics
    return metrics


def _intact(storage: Storage, ref: CheckpointRef) -> bool:
    try:
        files = read_manifest(storage, ref).files
        return all(_has_size(storage, file_path(ref, file), file.size_bytes) for file in files)
    except (CheckpointError, FileNotFoundError):
        return False


def _supersedes(done: CheckpointRef, attempt: CheckpointRef) -> bool:
    return done.step >= attempt.step and done >= attempt


def _deletion_order(ref: CheckpointRef, paths: list[str]) -> list[str]:
    shards = [path for path in paths if is_shard_file_name(path.partition("/")[2])]
    return [ref.manifest_path, *shards] if ref.manifest_path in paths else shards


def _present(storage: Storage, ref: CheckpointRef, file: ShardFile) -> ShardHeader:
    try:
        return read_header(storage, file_path(ref, file), file)
    except FileNotFoundError:
        raise CheckpointError(f"cannot commit {ref.name}: {file.name} is missing") from None
    except CheckpointError as error:
        raise CheckpointError(f"cannot commit {ref.name}: {file.name}: {error}") from None


def _has_size(storage: Storage, path: str, size_bytes: int) -> bool:
    # One byte comes back of two asked for: the file ends exactly there.
    return len(storage.get_range(path, size_bytes - 1, 2)) == 1


def check_cover(ref: CheckpointRef, headers: list[ShardHeader]) -> None:
    for header in headers:
        if header.ref != ref:
            raise CheckpointError(f"{ref.name} holds a file of {header.ref.name}")
    problems = cover_problems(part for header in headers for part in header.fragments)
    if problems:
        raise CheckpointError(f"{ref.name} is not complete: {problems[0]}")


def file_path(ref: CheckpointRef, file: ShardFile) -> str:
    return f"{ref.name}/{file.name}"


def shard_header(storage: Storage, ref: CheckpointRef, file: ShardFile) -> ShardHeader:
    """Raises: CheckpointError if it is no shard of the checkpoint, OSError if storage fails."""
    try:
        return read_header(storage, file_path(ref, file), file)
    except OSError as error:
        raise lost(ref, file.name, error) from None
    except CheckpointError as error:
        raise unreadable(ref, file.name, str(error)) from None


def lost(ref: CheckpointRef, file_name: str, error: OSError) -> Exception:
    """The error to raise where a file of a checkpoint is missing, or something else is in its
    place; the given one where its storage does not answer.
    """
    if isinstance(error, FileNotFoundError):
        return unreadable(ref, file_name, "it is missing")
    if error.errno in _NO_FILE:
        return unreadable(ref, file_name, str(error.strerror))
    return error


def unreadable(ref: CheckpointRef, file_name: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {ref.name} cannot be read: {file_name}: {what}; bring the file back, "
        f"or delete the folder {ref.name} to resume from the checkpoint before it"
    )
