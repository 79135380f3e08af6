"""The root of a checkpoint: a small JSON file that names the others with their sizes and hashes.

Only a manifest makes a checkpoint, and it is put last, so there is no "latest" record that could be
missing, stale or point to itself: the newest is found by a scan of names.

It is read strictly. The bytes must be exactly those that this version would write for the values in
them, and they carry a hash of themselves, so that one flipped bit anywhere is an error.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remesh.parallel.plan.errors import CheckpointError, OtherFormatError
from remesh.parallel.state.bounded_json import FORMAT_KEY, check_format, parse

FORMAT_VERSION = 3  # of the manifest and of the shards
MAX_MANIFEST_BYTES = 32 * 2**20
MAX_VALUES = 1_000_000

Scalar = str | int | float | bool

_TOO_MANY = 2**63
_NAME = re.compile(r"step-(\d{8,18})\.gen-(\d{1,18})\.start-(\d{1,18})", re.ASCII)
_FILE_NAME = re.compile(r"rank-(\d{1,9})-of-(\d{1,9})\.safetensors", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CheckpointRef:
    """Which checkpoint. The newer one is that of the later start, of one start that of the later
    generation: what that one trained stands on what it kept of the others.

    `start` is the claim of the start of the run that wrote it, so that no two starts write files
    of one name; 0 is that of none, as of an imported model.
    """

    start: int = 0
    generation: int
    step: int

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}.gen-{self.generation}.start-{self.start}"

    @property
    def manifest_path(self) -> str:
        return f"{self.name}/manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """One file of a checkpoint as its writer left it: name below the checkpoint, size, hash."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    """The dataset's identity and the number of consumed sequences."""

    digest: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """`fingerprint` is all that changes the curve, `created_by` are the versions that wrote it.

    `metrics` say how good the model was at this step; retention goes by them.
    """

    step: int
    generation: int
    fingerprint: Mapping[str, Scalar]
    bit_key: str
    data: DataPosition
    files: tuple[ShardFile, ...]
    created_by: Mapping[str, str]
    metrics: Mapping[str, float] = field(default_factory=dict)
    start: int = 0

    @property
    def ref(self) -> CheckpointRef:
        return CheckpointRef(step=self.step, generation=self.generation, start=self.start)


def parse_name(name: str) -> CheckpointRef | None:
    """The checkpoint that a folder's name stands for, None for a foreign one."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    step, generation, start = map(int, match.groups())
    ref = CheckpointRef(step=step, generation=generation, start=start)
    return ref if ref.name == name else None


def shard_file_name(rank: int, num_writers: int) -> str:
    return f"rank-{rank}-of-{num_writers}.safetensors"


def is_shard_file_name(name: str) -> bool:
    return _FILE_NAME.fullmatch(name) is not None


def is_complete(files: Sequence[ShardFile]) -> bool:
    """Whether these are the files of all writers of one save, each once and none else.

    A writer without a tensor to save leaves a file too, so that a missing one shows.
    And no name that was read out of a manifest leads out of the checkpoint's folder.
    """
    names = [file.name for file in files]
    expected = [shard_file_name(rank, len(names)) for rank in range(len(names))]
    return bool(names) and sorted(names) == sorted(expected)


def encode_manifest(manifest: CheckpointManifest) -> bytes:
    values: dict[str, Any] = {
        FORMAT_KEY: FORMAT_VERSION,
        "step": manifest.step,
        "generation": manifest.generation,
        "start": manifest.start,
        "fingerprint": dict(manifest.fingerprint),
        "bit_key": manifest.bit_key,
        "data": {"digest": manifest.data.digest, "position": manifest.data.position},
        "files": [
            {"name": file.name, "size_bytes": file.size_bytes, "digest": file.digest}
            for file in manifest.files
        ],
        "created_by": dict(manifest.created_by),
        # Nothing is best by a NaN.
        "metrics": {name: n for name, n in manifest.metrics.items() if math.isfinite(n)},
    }
    return _canonical({**values, "digest": hashlib.sha256(_canonical(values)).hexdigest()})


def decode_manifest(encoded: bytes) -> CheckpointManifest:
    """Raises: CheckpointError for anything that `encode_manifest` cannot have written."""
    try:
        values = parse(encoded, max_bytes=MAX_MANIFEST_BYTES, max_values=MAX_VALUES)
    except ValueError as error:
        raise CheckpointError(f"the manifest is {error}") from None
    try:
        check_format(values, FORMAT_VERSION)
    except ValueError as error:
        raise OtherFormatError(
            f"{error}; bring the file back, or use the version that wrote it, or start over "
            "with --fresh"
        ) from None
    manifest = _manifest(values)
    try:
        unchanged = encode_manifest(manifest) == encoded
    except ValueError:  # NaN and infinity, which are never written
        unchanged = False
    if not unchanged:
        raise CheckpointError("the manifest has changed since it was written: its hash differs")
    return manifest


def _manifest(values: dict[str, Any]) -> CheckpointManifest:
    try:
        manifest = CheckpointManifest(
            step=values["step"],
            generation=values["generation"],
            start=values["start"],
            fingerprint=values["fingerprint"],
            bit_key=values["bit_key"],
            data=DataPosition(**values["data"]),
            files=tuple(ShardFile(**file) for file in values["files"]),
            created_by=values["created_by"],
            metrics=values["metrics"],
        )
        problem = _type_problem(manifest)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise CheckpointError(f"the manifest is not one of Remesh's ({problem})")
    return manifest


def _type_problem(manifest: CheckpointManifest) -> str:
    counts = [manifest.step, manifest.generation, manifest.start, manifest.data.position]
    counts += [file.size_bytes for file in manifest.files]
    texts = [manifest.bit_key, manifest.data.digest, *manifest.created_by.values()]
    texts += [file.digest for file in manifest.files]
    checks = {
        "a count is no whole number from 0 on": all(
            type(n) is int and 0 <= n < _TOO_MANY for n in counts
        ),
        "a file is empty": all(file.size_bytes for file in manifest.files),
        "a version or hash is no text": all(isinstance(text, str) for text in texts),
        "the fingerprint is not flat": all(
            isinstance(value, Scalar) for value in manifest.fingerprint.values()
        ),
        "a metric is no finite number": all(
            type(value) in (int, float) and math.isfinite(value)
            for value in manifest.metrics.values()
        ),
        "a file is missing, doubled or foreign": is_complete(manifest.files),
    }
    return next((problem for problem, holds in checks.items() if not holds), "")


def _canonical(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
