"""Other people's weights as the first checkpoint of a run, from which `remesh run` goes on.

The checkpoint is one of step 0: the weights as they are found, slots and counts 0, no sequence
consumed. It is written and committed as those of a run are, and the run takes it up as it would
take up any other. Its generation is 0, before all that the run forms.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from remesh.actors.checkpoints.exporting import Format
from remesh.actors.checkpoints.origin import keep_words
from remesh.actors.history.journal_reading import read_history
from remesh.actors.run import old_runs
from remesh.actors.run.folder import RunFolder
from remesh.actors.storage.storage_url import open_storage
from remesh.orchestrator.job.job import Job
from remesh.orchestrator.user_errors import UserError
from remesh.parallel.files import convert, convert_dcp
from remesh.parallel.files.weights import Weights
from remesh.parallel.holding.shard_state import whole_state
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig, Shapes, parameter_shapes
from remesh.parallel.state.checkpoint import commit, discard_attempt
from remesh.parallel.state.reshard import HeldFragment
from remesh.parallel.state.root_manifest import (
    CheckpointManifest,
    CheckpointRef,
    DataPosition,
    ShardFile,
    shard_file_name,
)
from remesh.parallel.state.shards import encode_fragments, write_shard
from remesh.parallel.state.storage import Storage
from remesh.parallel.state.writers import writes

FILE_BYTES = 2**30
START = CheckpointRef(step=0, generation=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel:
    """Somebody else's model: its weights, and what its source says of its use (`words_of`)."""

    weights: Weights
    words: Mapping[str, Any]


def open_source(job: Job, form: Format, source: str, key: str | None = None) -> ForeignModel:
    """What lies in a folder or behind a URL, which has to be the job's model.

    `key` names the copy to take where there are several.

    Raises: UserError, CheckpointError or LayoutError, with the cure.
    """
    convert.refuse_pickles([source])
    if "://" not in source and not Path(source).is_dir():
        raise UserError(f"{source}: no such folder; name the one with the model's files")
    config, storage = _model(job), open_storage(source)
    try:
        if form == "dcp":
            weights = convert_dcp.open_weights(storage, config, key)
            return ForeignModel(weights=weights, words={})
        _check_same(config, convert.read_model(storage, config.seq_len), source)
        words = convert.read_words(storage)
        return ForeignModel(weights=convert.open_weights(storage, config, key), words=words)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from None


def begin_run(
    job: Job, data_digest: str, model: ForeignModel, note: Callable[[str], None]
) -> CheckpointRef:
    """Makes a new run of this job that starts from these weights.

    Cost: memory for a file of 1 GB; nothing is committed before all is written.
    Raises: UserError or CheckpointError, with no run begun.
    """
    folder = RunFolder(job.run_dir, job.checkpoint.url)
    folder.probe()
    with folder.lock():
        folder.check_free()
        old_runs.heal(folder.places)
        _check_new(folder)
        discard_attempt(folder.guarded, START)
        shapes = parameter_shapes(_model(job))
        files = write_start(folder.guarded, shapes, model.weights, note)
        manifest = CheckpointManifest(
            step=START.step,
            generation=START.generation,
            fingerprint=job.fingerprint(data_digest),
            bit_key=job.bit_key,
            data=DataPosition(digest=data_digest, position=0),
            files=tuple(files),
            created_by={name: version(name) for name in ("remesh", "torch")},
        )
        ref = commit(folder.guarded, manifest)
        keep_words(folder.guarded, model.words)
        return ref


def write_start(
    storage: Storage,
    shapes: Shapes,
    weights: Weights,
    note: Callable[[str], None],
    file_bytes: int = FILE_BYTES,
) -> list[ShardFile]:
    """The files of a state at step 0 with these weights, of about so many bytes each."""
    state = whole_state(shapes, AdamW.slots)
    num_files = -(-sum(part.num_bytes for part in state) // file_bytes)
    held = [HeldFragment(fragment=part, holders=tuple(range(num_files))) for part in state]
    files = []
    room: bytearray | None = None
    for number in range(num_files):
        parts = weights.start(writes(held, number))
        room = encode_fragments(parts.items(), START, room)
        path = f"{START.name}/{shard_file_name(number, num_files)}"
        files.append(write_shard(storage, path, room))
        note(f"file {number + 1} of {num_files}: {files[-1].size_bytes:,} bytes")
    return files


def _model(job: Job) -> ModelConfig:
    return ModelConfig(seq_len=job.train.seq_len, **job.model.model_dump())


def _check_same(job: ModelConfig, found: ModelConfig, source: str) -> None:
    """Raises: UserError with the [model] table that fits."""
    told: Mapping[str, Any] = asdict(found)
    other = [key for key, value in asdict(job).items() if told[key] != value]
    if other:
        seen = ", ".join(f"{key} = {_toml(getattr(job, key))}" for key in other)
        need = ", ".join(f"{key} = {_toml(told[key])}" for key in other)
        raise UserError(f"the job's [model] has {seen}; the model in {source} needs {need}")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _check_new(folder: RunFolder) -> None:
    history = read_history(folder.path)
    if folder.fingerprint() is not None or history.starts or history.strays:
        raise UserError(
            f"{folder.path} holds a run already; give this one another folder with "
            "--set checkpoint.dir=DIR"
        )
