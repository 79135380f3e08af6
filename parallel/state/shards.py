"""One rank's file of a checkpoint: safetensors whose header tells which fragments it holds.

The file is laid out here and not by the safetensors library, which copies every byte three times:
once is what a save must cost where training waits for it. The hashes are filled in by who writes
the file, while training goes on.
"""

import errno
from collections.abc import Callable, Iterable
from functools import partial
from mmap import mmap

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import (
    DTYPES,
    ShardHeader,
    header_of,
    in_file_order,
    lay_out,
    sealed,
    shard_digest,
)
from remesh.parallel.state.root_manifest import CheckpointRef, ShardFile
from remesh.parallel.state.storage import Head, Storage

_OF_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def encode_fragments(
    parts: Iterable[tuple[Fragment, Tensor]], ref: CheckpointRef, room: bytearray | None = None
) -> bytearray:
    """A copy of fragments as a shard, to be handed to `write_shard`. Several may be of one tensor.

    `room` is an earlier shard that nobody needs any more: written over if it has the right size,
    since memory that has been used before is several times as fast.

    Cost: each byte is copied once.
    """
    tensors = {part: tensor.detach() for part, tensor in parts}
    header_bytes, header = lay_out(ref, in_file_order(tensors))
    fits = room is not None and len(room) == header.size_bytes
    encoded = room if room is not None and fits else bytearray(header.size_bytes)
    encoded[: len(header_bytes)] = header_bytes
    file_B = torch.frombuffer(encoded, dtype=torch.uint8)
    for part in header.parts:
        tensor = tensors[part.fragment]
        assert (tuple(tensor.shape), _dtype(tensor)) == (part.fragment.sizes, part.fragment.dtype)
        place_B = file_B[part.start : part.end]
        place_B.view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return encoded


def write_shard(storage: Storage, path: str, encoded: bytearray) -> ShardFile:
    """Puts the file and tells how it must read back; the same one twice does no harm.

    Raises: OSError, of which FileExistsError if another file is there: none is ever written over.
    """
    return put_shard(storage, path, encoded, header_of(encoded, size_bytes=len(encoded)))


def put_shard(
    storage: Storage, path: str, encoded: bytearray | mmap, header: ShardHeader
) -> ShardFile:
    """As `write_shard`, for tensors that lie as `header` says in a file without its first bytes.

    The hashes that stand there are taken while the storage writes the tensors.
    """
    view = memoryview(encoded)
    start_bytes = header.start_bytes

    def seal() -> None:
        view[:start_bytes] = sealed(header, view)

    is_new = storage.put_if_absent(path, encoded, Head(num_bytes=start_bytes, fill=seal))
    start = bytes(view[:start_bytes])
    name = path.rsplit("/", 1)[-1]
    file = ShardFile(name=name, size_bytes=len(encoded), digest=shard_digest(start))
    if not is_new and not _is_same(storage, path, file, start):
        raise FileExistsError(errno.EEXIST, f"{path} is there already, and is another file")
    return file


def empty(fragment: Fragment) -> Tensor:
    """Raises: CheckpointError for a dtype that no checkpoint holds."""
    if fragment.dtype not in DTYPES:
        raise CheckpointError(f"{fragment} has the unknown dtype {fragment.dtype}")
    dtype: torch.dtype = getattr(torch, fragment.dtype)
    return torch.empty(fragment.sizes, dtype=dtype)


def bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous tensor on the CPU, to be written."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def copy_of(target: Tensor, source: Tensor) -> Callable[[], object]:
    """What copies the bits that `source` has then; the tensors themselves are looked at but once.

    By memcpy: torch's own copy is slower by a third where memory is not aligned alike, and by a
    quarter where it has to skip some.
    """
    if target.device.type == source.device.type == "cpu":
        return partial(np.copyto, _whole_numbers(target), _whole_numbers(source))
    return partial(target.copy_, source)


def _whole_numbers(tensor: Tensor) -> NDArray[np.signedinteger]:
    numbers: NDArray[np.signedinteger] = tensor.view(_OF_WIDTH[tensor.itemsize]).numpy()
    return numbers


def _is_same(storage: Storage, path: str, file: ShardFile, start: bytes) -> bool:
    """Whether the file there has this header, which proves all that stands behind it, and size."""
    there = storage.get_range(path, 0, len(start)) == start
    return there and len(storage.get_range(path, file.size_bytes - 1, 2)) == 1


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
