"""Files that somebody made to do harm: none is executed, and none costs more than an error."""

import json
import os
import pickle

import pytest
import torch
from recorded_disk import HastyDisk
from small_checkpoint import manifest_of, newest_state, save, write

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.checkpoint import commit, committed, prune
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.headers import shard_digest
from remesh.parallel.state.reading import read, read_fragments
from remesh.parallel.state.root_manifest import MAX_MANIFEST_BYTES, CheckpointRef, ShardFile

REF = CheckpointRef(step=20, generation=1)
SHARD = f"{REF.name}/rank-1-of-3.safetensors"


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "run", HastyDisk())


@pytest.fixture
def sprung(tmp_path):
    return tmp_path / "sprung"


def pickles(sprung, tmp_path):
    torch.save({"w0": Trap(sprung)}, tmp_path / "trap.pt")
    return [pickle.dumps(Trap(sprung)), (tmp_path / "trap.pt").read_bytes()]


def test_the_trap_works(sprung):
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()


def test_no_pickle_is_read_as_a_shard(storage, sprung, tmp_path):
    for trap in pickles(sprung, tmp_path):
        storage.delete(SHARD)
        files = list(write(storage, REF))
        storage.put(SHARD, trap)
        told = ShardFile(name=files[1].name, size_bytes=len(trap), digest=files[1].digest)
        with pytest.raises(CheckpointError, match=r"rank-1-of-3\.safetensors: not a safetensors"):
            commit(storage, manifest_of(REF, [files[0], told, files[2]]))
    storage.delete(SHARD)
    save(storage, 20)
    storage.put(SHARD, trap)
    with pytest.raises(CheckpointError, match=r"rank-1-of-3\.safetensors: it has not \d+ bytes"):
        read(storage, REF)
    assert not sprung.exists()


def test_no_pickle_is_read_as_a_manifest(storage, sprung, tmp_path):
    save(storage, 20)
    for trap in pickles(sprung, tmp_path):
        storage.put(REF.manifest_path, trap)
        with pytest.raises(CheckpointError, match=r"manifest\.json: the manifest is not JSON"):
            read(storage, REF)
    assert not sprung.exists()


def test_a_pickle_that_lies_beside_is_neither_read_nor_deleted(storage, sprung, tmp_path):
    save(storage, 20)
    names = ["model.pt", "rank-0-of-1.pt", "rank-0-of-3.safetensors.pt", "latest.pkl"]
    for name in names:
        storage.put(f"{REF.name}/{name}", pickles(sprung, tmp_path)[1])
    storage.put("step-00000090.gen-1.start-0/model.pt", pickles(sprung, tmp_path)[1])
    assert newest_state(storage) == 20
    save(storage, 30)
    assert newest_state(storage) == 30
    assert [path for path in storage.list("") if REF.name in path] == sorted(
        f"{REF.name}/{name}" for name in names
    )
    assert not sprung.exists()


def test_a_manifest_without_end_is_not_read_to_its_end(storage):
    """A file of a hundred gigabytes that takes no room on the disk."""
    save(storage, 20)
    with (storage.root / REF.manifest_path).open("r+b") as file:
        file.truncate(100 * 2**30)
    with pytest.raises(CheckpointError, match=f"more than the {MAX_MANIFEST_BYTES} bytes allowed"):
        read(storage, REF)


def test_a_manifest_of_a_billion_files_or_of_huge_counts_is_one_clear_error(storage):
    save(storage, 20)
    good = json.loads(storage.get(REF.manifest_path))
    file = good["files"][0]
    for files in (
        [{**file, "name": "rank-0-of-1000000000.safetensors"}],
        [{**file, "size_bytes": 10**30}],
        [{**file, "size_bytes": 2**62}, *good["files"][1:]],
        [file] * 300_000,
    ):
        storage.put(REF.manifest_path, json.dumps({**good, "files": files}).encode())
        with pytest.raises(CheckpointError, match=r"manifest\.json: .*; bring the file back, or"):
            read(storage, REF)
    prune(storage, keep=1)
    assert committed(storage) == [REF]


def header_as(storage, change):
    """The run with one shard whose header says something else, its hash told truly."""
    files = list(write(storage, REF))
    encoded = storage.get(SHARD)
    length = int.from_bytes(encoded[:8], "little")
    values = json.loads(encoded[8 : 8 + length])
    changed = change(values)
    start = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    shard = len(start).to_bytes(8, "little") + start + encoded[8 + length :]
    storage.put(SHARD, shard)
    told = ShardFile(name=files[1].name, size_bytes=len(shard), digest=shard_digest(shard))
    return manifest_of(REF, [files[0], told, files[2]])


def with_meta(values, change):
    meta = json.loads(values["__metadata__"]["remesh"])
    change(meta)
    return {**values, "__metadata__": {"remesh": json.dumps(meta)}}


def first(values, **changes):
    return with_meta(values, lambda meta: meta["fragments"][0].update(changes))


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"[" * 200_000,
        lambda _: b"{}" + b" " * 500,
        lambda values: {**values, "__metadata__": {"remesh": "[" * 100_000}},
        lambda values: {**values, "__metadata__": "x"},
        lambda values: {**values, "more": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}},
        lambda values: first(values, dtype="object"),
        lambda values: first(values, global_shape=[2**62, 2**62]),
        lambda values: first(values, sizes=[-1, 8]),
        lambda values: first(values, sizes=[8.0, 1]),
        lambda values: first(values, offsets=["0", 0]),
        lambda values: first(values, offsets=[0]),
        lambda values: first(values, chunk_bytes=1),
        lambda values: first(values, chunk_bytes=-4096),
        lambda values: first(values, digests="\N{SNOWMAN}"),
        lambda values: first(values, name=["w"]),
        lambda values: with_meta(values, lambda meta: meta.update(step="20")),
        lambda values: with_meta(values, lambda meta: meta.update(fragments=10**9)),
        lambda values: with_meta(values, lambda meta: meta["fragments"].append({})),
    ],
)
def test_a_header_that_lies_is_one_clear_error(storage, change):
    manifest = header_as(storage, change)
    with pytest.raises(
        CheckpointError, match=r"cannot commit step-00000020\.gen-1\.start-0|not complete"
    ):
        commit(storage, manifest)
    assert committed(storage) == []


def test_a_fragment_that_nobody_has_is_an_error_that_names_it(storage):
    save(storage, 20)
    assert read_fragments(storage, REF, []) == {}
    with pytest.raises(CheckpointError, match="does not hold what is wanted: nobody holds other"):
        read_fragments(storage, REF, [whole("other", (8, 1), "float32")])
    with pytest.raises(CheckpointError, match="never converted"):
        read_fragments(storage, REF, [whole("w0", (8, 1), "bfloat16")])
