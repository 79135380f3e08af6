"""Folders of models as they come: in many files, damaged, hostile; and as the start of a run."""

import json
import os
import pickle

import pytest
import torch
from manifests import checkpoint_manifest
from safetensors.torch import load_file, save_file
from small_engine import MODEL, spec, started, state_hash, work_of
from taken_over import take_over

from remesh.actors.checkpoints.importing import START, write_start
from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.files.convert import (
    CONFIG,
    INDEX,
    SINGLE,
    open_weights,
    read_model,
    write_model,
)
from remesh.parallel.files.convert_config import config_of
from remesh.parallel.files.convert_names import hugging_face_name
from remesh.parallel.files.foreign import read_stored, safetensors_file
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.model.initial import initial_value
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import parameter_shapes
from remesh.parallel.state.checkpoint import commit
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.landing import verify
from remesh.parallel.state.reading import read_fragments
from remesh.parallel.step.engine import Engine

SHAPES = parameter_shapes(MODEL)
EMBEDDING = "model.embed_tokens.weight"


def drawn(want):
    """The weights that an engine of this model draws for its seed."""
    return {box: initial_value(MODEL, spec().seed, box.name, SHAPES[box.name]) for box in want}


@pytest.fixture
def folder(tmp_path):
    """The model in several files, as Hugging Face keeps it."""
    write_model(LocalStorage(tmp_path), MODEL, drawn, config_of(MODEL, "float32"), 40_000)
    return tmp_path


def opened(folder):
    storage = LocalStorage(folder)
    return open_weights(storage, read_model(storage, MODEL.seq_len))


def test_a_model_in_many_files_is_read_by_any_box(folder):
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 3
    weights = opened(folder)
    name = "layers.1.ffn.down.weight"
    full = drawn([whole(name, SHAPES[name], "float32")]).popitem()[1]
    for dtype in ("float32", "float64", "bfloat16"):
        box = whole(name, SHAPES[name], dtype).part((7, 30), (29, 41))
        (found,) = weights.read([box]).values()
        assert torch.equal(found, full[7:36, 30:71].to(getattr(torch, dtype)))


def test_a_large_box_is_read_in_pieces(folder):
    shape = (3, 5 * 2**20)
    tensor = torch.arange(3 * 5 * 2**20, dtype=torch.float32).view(shape)
    save_file({"large": tensor}, folder / "large.safetensors")
    storage = LocalStorage(folder)
    stored = safetensors_file(storage, "large.safetensors").stored
    box = whole("large", shape, "float32").part((0, 2**20), (3, 2**20))
    (found,) = read_stored(storage, stored, [box]).values()
    assert torch.equal(found, tensor[:, 2**20 : 2 * 2**20])


def test_an_imported_model_is_the_state_of_step_0(folder, tmp_path):
    """The engine that drew these weights and the one that imports them train the same bits."""
    run, notes = LocalStorage(tmp_path / "run"), []
    files = write_start(run, SHAPES, opened(folder), notes.append, file_bytes=200_000)
    assert len(files) == len(notes) > 2
    assert commit(run, checkpoint_manifest(START, files)) == START
    assert verify(run, START) == sum(file.size_bytes for file in files)
    mesh = Mesh.alone()
    fresh, imported = started(mesh), Engine(spec())
    imported.form(mesh)
    wanted = [fragment for fragment, _ in imported.fragments()]
    take_over(imported, read_fragments(run, START, wanted), 0)
    assert state_hash(imported) == state_hash(fresh)
    fresh.step(1, work_of(mesh, 1))
    imported.step(1, work_of(mesh, 1))
    assert state_hash(imported) == state_hash(fresh)


def test_imported_weights_are_the_masters_that_a_step_goes_on_from(folder):
    """cases B048, cases B049: of bf16 files, exactly; a step of no length leaves them so."""
    tensors = {name: torch.full_like(value, 3.0) for name, value in tensors_of(folder).items()}
    exact = torch.full((MODEL.width,), 1 + 2**-12)
    rounded = {name: value.bfloat16() for name, value in tensors.items()}
    save_file({**rounded, "model.norm.weight": exact}, folder / SINGLE)
    engine, mesh = Engine(spec(lr=0.0)), Mesh.alone()
    engine.form(mesh)
    take_over(engine, opened(folder).start(fragment for fragment, _ in engine.fragments()), 0)
    for step in (1, 2):
        engine.step(step, work_of(mesh, step))
    state = {fragment.name: tensor for fragment, tensor in engine.fragments()}
    assert state["num_updates"].item() == 2
    for name in SHAPES:
        assert state[name].dtype == torch.float32
        assert torch.all(state[name] == (1 + 2**-12 if name == "norm.weight" else 3.0))


class Harm:
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
@pytest.mark.parametrize("with_config", [True, False])
def test_a_pickle_is_refused_by_name_and_never_read(folder, name, with_config):
    for path in folder.glob("model*"):
        path.unlink()
    if not with_config:
        (folder / CONFIG).unlink()
    (folder / name).write_bytes(pickle.dumps(Harm(folder / "made")))
    with pytest.raises(CheckpointError, match=f"{name} is a pickle, .*save_pretrained"):
        opened(folder)
    assert not (folder / "made").exists()


def test_a_safetensors_file_that_is_a_pickle_is_no_safetensors_file(folder):
    (path,) = folder.glob("model-00002-*")
    path.write_bytes(pickle.dumps(Harm(folder / "made")))
    with pytest.raises(CheckpointError, match="is no whole safetensors file"):
        opened(folder)
    assert not (folder / "made").exists()


@pytest.mark.parametrize(
    "place", ["../model.safetensors", "/etc/passwd", "pytorch_model.bin", "a/b.safetensors", 5]
)
def test_an_index_leads_to_no_other_place(folder, place):
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][EMBEDDING] = place
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"no safetensors file beside it|is a pickle"):
        opened(folder)


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_a_file_that_is_cut_short_is_told(folder, keep):
    (path,) = folder.glob("model-00002-*")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model-00002-.*fetch it again"):
        opened(folder)


def header_of(path):
    encoded = path.read_bytes()
    length = int.from_bytes(encoded[:8], "little")
    return json.loads(encoded[8 : 8 + length]), encoded[8 + length :]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "F32000"),
        ("dtype", ["F32"]),
        ("shape", [61, -48]),
        ("shape", [61.0, 48]),
        ("shape", [2**61, 2**61]),
        ("shape", 5),
        ("data_offsets", [0, 4]),
        ("data_offsets", [2**60, 2**60 + 61 * 48 * 4]),
        ("data_offsets", [0]),
    ],
)
def test_a_header_that_cannot_be_is_told(folder, key, value):
    (path,) = folder.glob("model-00001-*")
    header, data = header_of(path)
    header[EMBEDDING][key] = value
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    with pytest.raises(CheckpointError, match=r"model-00001-.*fetch it again"):
        opened(folder)


def test_files_that_lack_something_are_told(folder):
    (path,) = folder.glob("model-00002-*")
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path.name} is missing; fetch it again"):
        opened(folder)
    path.write_bytes(kept)
    (folder / INDEX).unlink()
    with pytest.raises(CheckpointError, match=f"neither {INDEX} nor {SINGLE}"):
        opened(folder)
    (folder / CONFIG).write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        opened(folder)
    (folder / CONFIG).unlink()
    with pytest.raises(CheckpointError, match=r"there is no config\.json"):
        opened(folder)


def tensors_of(folder):
    found = {}
    for path in folder.glob("model*.safetensors"):
        found |= load_file(path)
        path.unlink()
    (folder / INDEX).unlink()
    return found


def test_a_shape_that_is_not_the_models_is_told(folder):
    tensors = tensors_of(folder)
    tensors[EMBEDDING] = torch.zeros(61, 47)
    save_file(tensors, folder / SINGLE)
    with pytest.raises(CheckpointError, match=r"shape \(61, 47\), and the model wants \(61, 48\)"):
        opened(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_weights_that_are_no_plain_numbers_are_told(folder, dtype):
    tensors = tensors_of(folder)
    tensors[EMBEDDING] = torch.zeros(61, 48).to(dtype)
    save_file(tensors, folder / SINGLE)
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is \w+; use weights in one of"):
        opened(folder)


def test_a_tied_model_may_hold_its_head_twice_but_no_other_one(folder):
    """cases B051: a head that was trained by itself is not left out in silence."""
    tensors = tensors_of(folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, "tie_word_embeddings": True}))
    save_file(tensors, folder / SINGLE)
    with pytest.raises(CheckpointError, match=r"lm_head.weight is not the embedding; set model.t"):
        opened(folder)
    save_file({**tensors, "lm_head.weight": tensors[EMBEDDING].clone()}, folder / SINGLE)
    names = {one.fragment.name for one in opened(folder).stored}
    assert "head.weight" not in names
    assert hugging_face_name("head.weight") == "lm_head.weight"
