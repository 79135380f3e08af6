"""Small checkpoints whose values tell their step, for tests of what becomes of them."""

import torch
from manifests import checkpoint_manifest
from whole_shards import encode_shard, shard_names

from remesh.parallel.state.checkpoint import commit, committed, prune
from remesh.parallel.state.reading import read
from remesh.parallel.state.root_manifest import (
    CheckpointRef,
    shard_file_name,
)
from remesh.parallel.state.shards import write_shard


def state(step):
    return {f"w{index}": torch.full((8, index + 1), float(step)) for index in range(5)}


def write(storage, ref, num_writers=3, tensors=None):
    """Writes one shard after the other, and gives each file once it is there."""
    tensors = tensors or state(ref.step)
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    for rank, names in enumerate(shard_names(sizes, num_writers)):
        encoded = encode_shard({name: tensors[name] for name in names}, ref)
        yield write_shard(storage, f"{ref.name}/{shard_file_name(rank, num_writers)}", encoded)


def manifest_of(ref, files, **values):
    return checkpoint_manifest(ref, files, position=ref.step, **values)


def write_and_commit(storage, ref, num_writers=3, tensors=None):
    return commit(storage, manifest_of(ref, write(storage, ref, num_writers, tensors)))


def save(storage, step, generation=1, keep=1):
    """As a run does it: write, commit, prune."""
    ref = write_and_commit(storage, CheckpointRef(step=step, generation=generation))
    prune(storage, keep, protect=[ref])
    return ref


def newest_state(storage):
    """The step of the newest checkpoint, which has to be whole and of that step alone."""
    ref = committed(storage)[0]
    tensors = read(storage, ref)
    expected = state(ref.step)
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], value) for name, value in expected.items())
    return ref.step
