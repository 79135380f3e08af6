"""Checkpoints on a real disk: what was saved is read back to the bit, or the read is an error."""

import math
import shutil
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from manifests import checkpoint_manifest
from whole_shards import encode_shard, shard_names

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import commit, committed, prune, read_manifest
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.state.headers import shard_digest
from remesh.parallel.state.landing import verify
from remesh.parallel.state.reading import read
from remesh.parallel.state.root_manifest import (
    CheckpointRef,
    DataPosition,
    shard_file_name,
)
from remesh.parallel.state.shards import encode_fragments, write_shard
from remesh.parallel.state.storage import Storage

REF = CheckpointRef(step=20, generation=3)


@pytest.fixture
def storage(tmp_path) -> Storage:
    return LocalStorage(tmp_path)


def state(seed=0):
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(96, generator=generator)
    return {
        "layer.weight": flat[:60].view(10, 6),
        "layer.bias": flat[60:70],
        "exp_avg.layer.weight": flat[70:].view(2, 13),
        "master": torch.tensor([1 + 2**-12, math.inf, -0.0, math.nan, 2**-149]),
        "working": torch.tensor([1.5, -3.0], dtype=torch.bfloat16),
        "count": torch.tensor(2**53 + 1),
        "empty": torch.zeros(0, 4),
    }


def manifest_of(files, ref=REF):
    return checkpoint_manifest(ref, files, position=480, fingerprint={"model.width": 6})


def write(storage, tensors, ref=REF, num_writers=3):
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    files = []
    for rank, names in enumerate(shard_names(sizes, num_writers)):
        encoded = encode_shard({name: tensors[name] for name in names}, ref)
        path = f"{ref.name}/{shard_file_name(rank, num_writers)}"
        files.append(write_shard(storage, path, encoded))
    return files


def save(storage, tensors, ref=REF, num_writers=3):
    return commit(storage, manifest_of(write(storage, tensors, ref, num_writers), ref))


def same_bits(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name]
        .contiguous()
        .view(-1)
        .view(torch.uint8)
        .equal(other[name].contiguous().view(-1).view(torch.uint8))
        for name in one
    )


@pytest.mark.parametrize("num_writers", [1, 2, 3, 8, 12])
def test_what_was_saved_is_read_back_to_the_bit(storage, num_writers):
    ref = save(storage, state(), num_writers=num_writers)
    assert same_bits(read(storage, ref), state())
    assert read(storage, ref)["master"][0].item() == 1 + 2**-12
    assert read_manifest(storage, ref).data == DataPosition(digest="d", position=480)
    assert committed(storage) == [REF]


def test_writers_share_the_bytes_and_each_tensor_has_one():
    sizes = {f"t{index}": 100 + 7 * index for index in range(40)}
    parts = shard_names(sizes, 4)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    loads = [sum(sizes[name] for name in part) for part in parts]
    assert max(loads) - min(loads) <= max(sizes.values())
    assert shard_names(dict(reversed(sizes.items())), 4) == parts
    assert shard_names({"one": 5}, 3) == [["one"], [], []]


def rows_of(tensor, spans, ref=REF):
    """Shards that hold the rows [first, last) of one tensor, one shard a span."""
    for first, last in spans:
        part = Fragment(
            name="w",
            global_shape=tuple(tensor.shape),
            offsets=(first, 0),
            sizes=(last - first, tensor.shape[1]),
            dtype="float32",
        )
        yield encode_fragments([(part, tensor[first:last])], ref)


def write_rows(storage, tensor, spans):
    encoded = list(rows_of(tensor, spans))
    return [
        write_shard(storage, f"{REF.name}/{shard_file_name(rank, len(encoded))}", shard)
        for rank, shard in enumerate(encoded)
    ]


def test_a_tensor_cut_into_fragments_is_put_together(storage):
    weight = torch.arange(60.0).view(10, 6)
    files = write_rows(storage, weight, [(0, 3), (3, 3), (3, 10)])
    assert torch.equal(read(storage, commit(storage, manifest_of(files)))["w"], weight)


@pytest.mark.parametrize("spans", [[(0, 3), (4, 10)], [(0, 4), (3, 10)], [(0, 9)]])
def test_a_tensor_with_a_gap_or_an_overlap_is_not_committed(storage, spans):
    files = write_rows(storage, torch.arange(60.0).view(10, 6), spans)
    with pytest.raises(CheckpointError, match=r"is not complete: w\W"):
        commit(storage, manifest_of(files))
    assert committed(storage) == []


def test_one_flipped_bit_in_any_file_is_an_error_that_names_it(storage, tmp_path):
    save(storage, state())
    for file in sorted((tmp_path / REF.name).iterdir()):
        good = file.read_bytes()
        for position in range(0, len(good), 29):
            torn = bytearray(good)
            torn[position] ^= 1 << position % 8
            file.write_bytes(torn)
            for reader in (read, verify):
                message = rf"{file.name}: .*; bring the file back, or"
                with pytest.raises(CheckpointError, match=message):
                    reader(storage, REF)
        file.write_bytes(good)
    assert same_bits(read(storage, REF), state())
    files = [file for file in (tmp_path / REF.name).iterdir() if file.suffix == ".safetensors"]
    assert verify(storage, REF) == sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("name", ["manifest.json", "rank-1-of-3.safetensors"])
def test_a_missing_truncated_or_longer_file_is_an_error_that_names_it(storage, tmp_path, name):
    save(storage, state())
    file = tmp_path / REF.name / name
    good = file.read_bytes()
    for bad in (good[:-1], good[:5], b"", good + b"\0"):
        file.write_bytes(bad)
        with pytest.raises(CheckpointError, match=name):
            read(storage, REF)
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{name}: it is missing"):
        read(storage, REF)


def test_a_folder_copied_under_another_name_is_refused(storage, tmp_path):
    save(storage, state())
    other = CheckpointRef(step=40, generation=3)
    shutil.copytree(tmp_path / REF.name, tmp_path / other.name)
    with pytest.raises(CheckpointError, match=f"it is the one of {REF.name}"):
        read(storage, other)


def test_only_files_that_are_there_and_whole_are_committed(storage, tmp_path):
    files = write(storage, state())
    file = tmp_path / REF.name / files[2].name
    good = file.read_bytes()
    for bad in (good[:-1], good + b"\0", good[:4]):
        file.write_bytes(bad)
        with pytest.raises(CheckpointError, match=rf"cannot commit .*: {file.name}: it has not"):
            commit(storage, manifest_of(files))
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.name} is missing"):
        commit(storage, manifest_of(files))
    assert committed(storage) == []
    for some in (files[:2], files[1:], [*files, files[0]]):
        with pytest.raises(CheckpointError, match="of all writers' files it has rank-"):
            commit(storage, manifest_of(some))
    with pytest.raises(CheckpointError, match="it has no files"):
        commit(storage, manifest_of([]))


def test_a_file_of_another_attempt_is_not_committed(storage):
    files = write(storage, state())
    encoded = encode_shard({"late": torch.ones(2)}, CheckpointRef(step=20, generation=2))
    storage.delete(f"{REF.name}/{shard_file_name(0, 3)}")
    late = write_shard(storage, f"{REF.name}/{shard_file_name(0, 3)}", encoded)
    with pytest.raises(CheckpointError, match=r"holds a file of step-00000020\.gen-2\.start-0"):
        commit(storage, manifest_of([late, *files[1:]]))


def test_committing_twice_does_no_harm_and_never_replaces(storage):
    files = write(storage, state())
    assert commit(storage, manifest_of(files)) == commit(storage, manifest_of(files))
    assert write(storage, state()) == files
    with pytest.raises(FileExistsError, match="is there already, and is another file"):
        write(storage, state(seed=1))
    with pytest.raises(CheckpointError, match="committed already"):
        commit(storage, replace(manifest_of(files), bit_key="another"))
    assert same_bits(read(storage, REF), state())


def test_a_leftover_half_folder_is_in_nobodys_way(storage, tmp_path):
    """Another start of the run saves the same step in a generation of the same number."""
    write(storage, state(seed=1), num_writers=4)
    (tmp_path / REF.name / shard_file_name(3, 4)).unlink()
    again = replace(REF, start=1)
    save(storage, state(), again, num_writers=4)
    assert committed(storage) == [again]
    assert same_bits(read(storage, again), state())


def test_a_shard_whose_tensors_are_not_those_it_names_is_refused(storage):
    encoded = encode_shard({"w": torch.ones(4)}, REF)
    file = write_shard(storage, f"{REF.name}/{shard_file_name(0, 1)}", encoded)
    for true, false in ((b'"F32"', b'"I32"'), (b"[4]", b"[5]"), (b',"w":', b',"x":')):
        storage.put(f"{REF.name}/{file.name}", encoded.replace(true, false))
        lying = replace(file, digest=shard_digest(encoded.replace(true, false)))
        with pytest.raises(CheckpointError, match="its header does not tell its fragments"):
            commit(storage, manifest_of([lying]))


def test_a_shard_is_a_file_that_safetensors_reads(storage, tmp_path):
    files = write(storage, state(), num_writers=1)
    assert same_bits(safetensors.torch.load_file(tmp_path / REF.name / files[0].name), state())


def test_a_shard_in_the_format_of_another_version_is_refused_with_both(storage):
    encoded = encode_shard({"w": torch.ones(4)}, REF)
    other = encoded.replace(b'format_version\\":3', b'format_version\\":2')
    assert other != encoded
    file = write_shard(storage, f"{REF.name}/{shard_file_name(0, 1)}", encoded)
    storage.put(f"{REF.name}/{file.name}", other)
    with pytest.raises(CheckpointError, match="format_version 2, this Remesh reads 3"):
        commit(storage, manifest_of([replace(file, digest=shard_digest(other))]))


def test_the_newest_is_found_by_a_scan_that_ignores_what_is_foreign(storage, tmp_path):
    for step, generation in [(10, 1), (20, 3), (20, 2)]:
        save(storage, state(step), CheckpointRef(step=step, generation=generation))
    write(storage, state(), CheckpointRef(step=30, generation=3))
    (tmp_path / "latest").symlink_to(tmp_path / "step-00000010.gen-1.start-0")
    for foreign in ("step-99/manifest.json", "step-00000040.gen-1.old/manifest.json", "step-notes"):
        storage.put(foreign, b"{}")
    assert [ref.name for ref in committed(storage)] == [
        "step-00000020.gen-3.start-0",
        "step-00000020.gen-2.start-0",
        "step-00000010.gen-1.start-0",
    ]
    prune(storage, keep=1)
    assert committed(storage) == [REF]
    assert storage.get("step-99/manifest.json") == b"{}"
    assert storage.get("step-notes") == b"{}"
