"""Shards of whole tensors: the small checkpoints of tests, and what a shard holds by name."""

import heapq

from remesh.parallel.state.fragments import whole
from remesh.parallel.state.headers import header_of, shard_key
from remesh.parallel.state.shards import bytes_of, empty, encode_fragments


def shard_names(sizes_bytes, num_writers):
    """The tensors that each writer saves: every name once, bytes balanced, the same on all ranks.

    Source: Graham 1969, largest first: at most 4/3 of the smallest possible maximum.
    """
    parts = [[] for _ in range(num_writers)]
    loads = [(0, writer) for writer in range(num_writers)]
    for name in sorted(sizes_bytes, key=lambda name: (-sizes_bytes[name], name)):
        load_bytes, writer = heapq.heappop(loads)
        parts[writer].append(name)
        heapq.heappush(loads, (load_bytes + sizes_bytes[name], writer))
    return parts


def encode_shard(tensors, ref):
    """A copy of whole tensors as a shard, to be handed to `write_shard`."""
    parts = [
        (whole(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")), tensor)
        for name, tensor in tensors.items()
    ]
    return encode_fragments(parts, ref)


def decode_shard(encoded):
    """A copy of the tensors, by their names in the file; hashes are not looked at.

    Raises: CheckpointError if the tensors are not those that the header promises.
    """
    header = header_of(encoded, size_bytes=len(encoded))
    view = memoryview(encoded)
    tensors = {}
    for part in header.parts:
        tensor = empty(part.fragment)
        bytes_of(tensor).data[:] = view[part.start : part.end]
        tensors[shard_key(part.fragment)] = tensor
    return header, tensors
