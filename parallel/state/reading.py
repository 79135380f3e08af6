"""Reading a checkpoint back: whole tensors, once every file has been verified."""

import torch
from torch import Tensor

from remesh.parallel.errors import CheckpointError
from remesh.parallel.state.checkpoint import check_cover, file_path, read_manifest, unreadable
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import ShardHeader, shard_digest
from remesh.parallel.state.manifest import CheckpointRef, ShardFile
from remesh.parallel.state.shards import decode_shard
from remesh.parallel.state.storage import Storage


def read(storage: Storage, ref: CheckpointRef) -> dict[str, Tensor]:
    """Every tensor whole, on the CPU, after sizes and hashes of all files have been checked.

    Cost: memory for all tensors and one file.
    Raises: CheckpointError that names the file and the cure.
    """
    tensors: dict[str, Tensor] = {}
    headers = []
    for file in read_manifest(storage, ref).files:
        header, parts = _verified(storage, ref, file)
        headers.append(header)
        for fragment in header.fragments:
            _place(tensors, fragment, parts[fragment.name])
    check_cover(ref, headers)
    return tensors


def _verified(
    storage: Storage, ref: CheckpointRef, file: ShardFile
) -> tuple[ShardHeader, dict[str, Tensor]]:
    try:
        encoded = storage.get(file_path(ref, file))
        _check_bytes(encoded, file)
        return decode_shard(encoded)
    except FileNotFoundError:
        raise unreadable(ref, file.name, "it is missing") from None
    except CheckpointError as error:
        raise unreadable(ref, file.name, str(error)) from None


def _check_bytes(encoded: bytes, file: ShardFile) -> None:
    if len(encoded) != file.size_bytes:
        raise CheckpointError(f"{len(encoded)} bytes instead of {file.size_bytes}")
    if shard_digest(encoded) != file.digest:
        raise CheckpointError("its hash is not the one in the manifest")


def _place(tensors: dict[str, Tensor], fragment: Fragment, part: Tensor) -> None:
    if fragment.is_whole:
        tensors[fragment.name] = part
        return
    if fragment.name not in tensors:
        tensors[fragment.name] = torch.empty(fragment.global_shape, dtype=part.dtype)
    box = zip(fragment.offsets, fragment.sizes, strict=True)
    tensors[fragment.name][tuple(slice(start, start + size) for start, size in box)] = part
