"""Checkpoints proven to be whole, and written for others."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from remesh.actors.checkpoints.looking import CheckpointTarget
from remesh.actors.checkpoints.origin import kept_words
from remesh.actors.storage.storage_url import open_storage
from remesh.actors.storage.watched_storage import WatchedStorage
from remesh.orchestrator.job.tables.model_table import ModelTable
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.files import convert, convert_dcp
from remesh.parallel.files.convert_config import CONTEXT, SPECIAL_TOKENS, config_of
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.state.checkpoint import read_manifest
from remesh.parallel.state.landing import verify
from remesh.parallel.state.reading import read_fragments
from remesh.parallel.state.root_manifest import CheckpointManifest

Format = Literal["hf", "dcp"]

_THEIRS = "as the imported model said"


def verify_all(target: CheckpointTarget, note: Callable[[str], None]) -> None:
    """Reads every byte of the named checkpoint, or of all.

    Raises: CheckpointError that names all that are bad, once the others are proven.
    """
    problems = []
    for ref in [target.ref] if target.ref else target.refs:
        watched = WatchedStorage(target.storage, partial(_note_read, note, f"{ref.name}: "))
        try:
            note(f"{ref.name} is whole: {verify(watched, ref):,} bytes")
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("; ".join(problems))


def export(
    target: CheckpointTarget, form: Format, out: str, dtype: str, note: Callable[[str], None]
) -> str:
    """Writes a checkpoint for others, into an empty place; says what has been written.

    Cost: memory for a file of 2 GB and its weights in fp32 (hf), or for the whole state (dcp).
    Raises: UserError, CheckpointError.
    """
    ref = target.named
    config = _model(read_manifest(target.storage, ref))
    watched = WatchedStorage(target.storage, partial(_note_read, note, ""))
    read = partial(read_fragments, watched, ref)
    place = open_storage(out)
    with _written(out):
        taken = place.list("")
    if taken:
        raise UserError(f"{out} is not empty; name a new folder")
    if form == "hf":
        words = kept_words(target.storage)
        values = config_of(config, dtype, words)
        with _written(out):
            files = convert.write_model(place, config, read, values)
        return f"{ref.name} is in {out}: {', '.join(files)}; {_said(values, words)}"
    if "://" in out:
        raise UserError(f"{out}: torch writes distributed checkpoints to folders; name a folder")
    if dtype != "float32":
        raise UserError("--dtype is for --to hf: a distributed checkpoint is fp32; leave it out")
    with _written(out):
        convert_dcp.write_checkpoint(Path(out), config, read)
    return f"{ref.name} is in {out}: read it with torch.distributed.checkpoint.load"


@contextmanager
def _written(out: str) -> Iterator[None]:
    """Raises: UserError where a disk or its owner lets nothing be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written: {error.strerror or error}; make room, or name another "
            f"folder"
        ) from None


def _model(manifest: CheckpointManifest) -> ModelConfig:
    """What stands at a default of the job file is left out of a fingerprint."""
    told = manifest.fingerprint
    values = {key.removeprefix("model."): told[key] for key in told if key.startswith("model.")}
    try:
        seq_len = int(told["train.seq_len"])
        return ModelConfig(seq_len=seq_len, **ModelTable.model_validate(values).model_dump())
    except KeyError as error:
        raise _untold(manifest, str(error)) from None
    except ValidationError as error:
        keys = ", ".join(f"model.{item['loc'][0]}" for item in error.errors() if item["loc"])
        raise _untold(manifest, keys) from None


def _untold(manifest: CheckpointManifest, keys: str) -> UserError:
    return UserError(
        f"{manifest.ref.name} does not tell its model ({keys}); export it with the version that "
        f"wrote it"
    )


def _said(values: Mapping[str, Any], words: Mapping[str, Any]) -> str:
    """What config.json says that the run itself does not know, and where that is from."""
    context = values[CONTEXT]
    origin = _THEIRS if words.get(CONTEXT) == context else "the length of the run's sequences"
    tokens = ", ".join(f"{key} = {words[key]}" for key in SPECIAL_TOKENS if key in words)
    named = f"{tokens} ({_THEIRS})" if tokens else "no special tokens"
    return f"config.json says {CONTEXT} = {context} ({origin}) and {named}"


def _note_read(note: Callable[[str], None], of: str, num_bytes: int) -> None:
    note(f"{of}{num_bytes / 1e9:.1f} GB read")
