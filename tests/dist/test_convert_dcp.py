"""Torch distributed checkpoints: as torch writes them, and as it reads ours."""

import io
import os
import pickle
import resource
import shutil
import warnings
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed.checkpoint as dcp
from converted_ranks import save_shards
from small_checkpoint import write_and_commit
from small_engine import MODEL

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.files.convert_dcp import open_weights, write_checkpoint
from remesh.parallel.model.initial import draw
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import parameter_shapes
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.reading import read_fragments
from remesh.parallel.state.root_manifest import CheckpointRef

SHAPES = parameter_shapes(MODEL)
WANT = [whole(name, shape, "float32") for name, shape in SHAPES.items()]
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def values(dtype=torch.float32):
    return {name: draw(3, name, shape).to(dtype) for name, shape in SHAPES.items()}


def check(folder, expected, dtype=torch.float32):
    found = open_weights(LocalStorage(folder), MODEL).read(WANT)
    for fragment, tensor in found.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[fragment.name].to(dtype).float())


def test_what_several_ranks_have_saved_in_shards_is_read(pool, tmp_path):
    pool.run(save_shards, 2, tmp_path / "store", tmp_path, values(torch.bfloat16))
    assert len(list(tmp_path.glob("*.distcp"))) == 2
    check(tmp_path, values(), torch.bfloat16)


def classic(folder):
    """A checkpoint of one process, with an optimizer and objects beside the model."""
    state = {"model": values(), "n": 3, "optimizer": {"state": {"a": {"step": torch.ones(())}}}}
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return classic(tmp_path_factory.mktemp("dcp"))


def test_what_one_process_has_saved_is_read(saved):
    check(saved, values())


def test_what_is_written_as_safetensors_is_read_without_any_pickle(tmp_path):
    writer = dcp.HuggingFaceStorageWriter(str(tmp_path), save_distributed=True)
    dcp.save(values(torch.float16), storage_writer=writer, no_dist=True)
    check(tmp_path, values(), torch.float16)


def test_torch_reads_what_is_written_here(tmp_path):
    run = LocalStorage(tmp_path / "run")
    weights = values()
    state = {**weights, "num_updates": torch.tensor([7])}
    for number, moment in enumerate(("exp_avg", "exp_avg_sq"), start=2):
        state |= {f"{moment}.{name}": value * number for name, value in weights.items()}
    ref = write_and_commit(run, CheckpointRef(step=7, generation=1), tensors=state)
    out = tmp_path / "out"
    write_checkpoint(out, MODEL, lambda want: read_fragments(run, ref, want))
    wanted = {
        "model": {name: torch.zeros(shape) for name, shape in SHAPES.items()},
        "optimizer": {
            "state": {
                name: {
                    "exp_avg": torch.zeros(shape),
                    "exp_avg_sq": torch.zeros(shape),
                    "step": torch.zeros(()),
                }
                for name, shape in SHAPES.items()
            }
        },
    }
    dcp.load(wanted, checkpoint_id=out, no_dist=True)
    for name, value in weights.items():
        told = wanted["optimizer"]["state"][name]
        assert torch.equal(wanted["model"][name], value)
        assert torch.equal(told["exp_avg"], value * 2)
        assert torch.equal(told["exp_avg_sq"], value * 3)
        assert told["step"] == 7
    check(out, weights)


class Harm:
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_hostile_table_of_contents_is_refused_and_nothing_of_it_run(saved, tmp_path):
    folder, made = tmp_path / "dcp", tmp_path / "made"
    shutil.copytree(saved, folder)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.planner_data = Harm(made)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"\.metadata: it names posix\.mkdir, which no file"):
        open_weights(LocalStorage(folder), MODEL)
    assert not made.exists()
    dcp.FileSystemReader(folder).read_metadata()
    assert made.exists()  # torch would have run it


def append_archive(path, told):
    """A tensor's archive at the end of a file, with this pickle in it; how long it is."""
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as archive:
        archive.writestr("archive/data.pkl", told)
        archive.writestr("archive/byteorder", b"little")
        archive.writestr("archive/data/0", bytes(4 * MODEL.width))
    with path.open("ab") as file:
        return file.write(room.getvalue())


def test_a_hostile_tensor_is_refused_and_nothing_of_it_run(saved, tmp_path):
    folder, made = tmp_path / "dcp", tmp_path / "made"
    shutil.copytree(saved, folder)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for key, info in metadata.storage_data.items():
        if key.fqn == "model.norm.weight":
            path = folder / info.relative_path
            info.offset = path.stat().st_size
            info.length = append_archive(path, pickle.dumps(Harm(made)))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"norm.weight.*names posix.mkdir"):
        open_weights(LocalStorage(folder), MODEL)
    assert not made.exists()


def changed(metadata, name, **fields):
    for key, info in metadata.storage_data.items():
        if key.fqn == name:
            info.__dict__.update(fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"relative_path": "../../etc/passwd"}, "is no file beside it"),
        ({"relative_path": "gone.distcp"}, "gone.distcp is missing"),
        ({"offset": 10**9}, "no zip archive begins"),
        ({"offset": -1}, "are no counts"),
        ({"length": 100}, "no zip archive"),
        ({"transform_descriptors": ["zstd"]}, "compressed or encrypted"),
    ],
)
def test_places_that_cannot_be_are_told(saved, tmp_path, fields, text):
    folder = tmp_path / "dcp"
    shutil.copytree(saved, folder)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    changed(metadata, "model.norm.weight", **fields)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError) as caught:
        open_weights(LocalStorage(folder), MODEL)
    assert text in str(caught.value)


def test_a_tied_model_is_not_made_of_one_with_a_head_of_its_own(saved, tmp_path):
    tied = replace(MODEL, tied=True)
    with pytest.raises(CheckpointError, match=r"its model.head.weight is not the embedding; set m"):
        open_weights(LocalStorage(saved), tied)
    weights = values()
    weights["head.weight"] = weights["embedding.weight"].clone()
    dcp.save(weights, checkpoint_id=tmp_path, no_dist=True)
    names = {one.fragment.name for one in open_weights(LocalStorage(tmp_path), tied).stored}
    assert names == parameter_shapes(tied).keys()


def test_a_tensor_that_does_not_lie_row_after_row_is_told(tmp_path):
    weights = values()
    weights["embedding.weight"] = weights["embedding.weight"].T.contiguous().T
    dcp.save(weights, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(CheckpointError, match=r"does not lie row after row; save it after cont"):
        open_weights(LocalStorage(tmp_path), MODEL)


def test_a_folder_without_a_checkpoint_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"neither \.metadata nor a safetensors file"):
        open_weights(LocalStorage(tmp_path), MODEL)


@contextmanager
def small_disk():
    """No file may have more than 1,000 bytes; what the tests are told in may, once it is over."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def written(run, out):
    tensors = {**values(), "num_updates": torch.tensor([7])}
    for moment in ("exp_avg", "exp_avg_sq"):
        tensors |= {f"{moment}.{name}": value for name, value in values().items()}
    ref = write_and_commit(LocalStorage(run), CheckpointRef(step=7, generation=1), tensors=tensors)
    return lambda: write_checkpoint(out, MODEL, partial(read_fragments, LocalStorage(run), ref))


def test_a_folder_that_takes_no_files_is_told_as_its_disk_told_it(tmp_path):
    """Torch raises what is no Exception in place of it, and a command ended in a traceback."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        written(tmp_path / "run", tmp_path / "file" / "out")()


def test_a_disk_that_is_full_is_told_and_not_how_a_writer_fails_as_it_closes(tmp_path):
    write = written(tmp_path / "run", tmp_path / "out")
    with pytest.raises(OSError, match="File too large"), small_disk():
        write()
