"""One rank's file of a checkpoint: safetensors whose header tells which fragments it holds."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from remesh.parallel.errors import CheckpointError
from remesh.parallel.state.fragments import Fragment, whole
from remesh.parallel.state.headers import KEY, ShardHeader, header_of, shard_digest
from remesh.parallel.state.manifest import CheckpointRef, ShardFile
from remesh.parallel.state.storage import Storage


def encode_shard(
    tensors: Mapping[str, Tensor],
    ref: CheckpointRef,
    fragments: Mapping[str, Fragment] | None = None,
) -> bytes:
    """A safetensors file. A tensor without an entry in `fragments` is whole."""
    parts = [
        (fragments or {}).get(name) or whole(name, tuple(tensor.shape), _dtype(tensor))
        for name, tensor in tensors.items()
    ]
    meta = {
        "step": ref.step,
        "generation": ref.generation,
        "fragments": [asdict(part) for part in parts],
    }
    return save(dict(tensors), metadata={KEY: json.dumps(meta)})


def write_shard(storage: Storage, path: str, encoded: bytes) -> ShardFile:
    """Puts the file, over a leftover of an earlier attempt, and tells how it must read back."""
    storage.put(path, encoded)
    name = path.rsplit("/", 1)[-1]
    return ShardFile(name=name, size_bytes=len(encoded), digest=shard_digest(encoded))


def decode_shard(encoded: bytes) -> tuple[ShardHeader, dict[str, Tensor]]:
    """Raises: CheckpointError if the tensors are not those that the header promises."""
    header = header_of(encoded)
    try:
        tensors = load(encoded)
    except SafetensorError as error:
        raise CheckpointError(f"not a safetensors file ({error})") from None
    held = {name: (tuple(tensor.shape), _dtype(tensor)) for name, tensor in tensors.items()}
    told = {part.name: (part.sizes, part.dtype) for part in header.fragments}
    if held != told:
        raise CheckpointError("its tensors are not those that its header names")
    return header, tensors


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
