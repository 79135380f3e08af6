"""Small models as others save them, made here without their libraries."""

import io
import json
import pickle
from typing import ClassVar

import torch

from remesh.actors.storage.file_storage import LocalStorage
from remesh.parallel.files.convert import write_model
from remesh.parallel.files.convert_config import config_of
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes

MODEL = ModelConfig(
    num_layers=1, width=8, num_heads=2, num_kv_heads=1, ffn_width=12, vocab_size=256, seq_len=16
)
SHAPES = parameter_shapes(MODEL)
DCP_FILE = "__0_0.distcp"
_TYPES = "torch.distributed.checkpoint.metadata"


class Foreign:
    """Pickled as an object of the class that its type is called after."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


def _stand_in(name, module=_TYPES):
    return type(name, (Foreign,), {"__module__": module})


Metadata = _stand_in("Metadata")
TensorStorageMetadata = _stand_in("TensorStorageMetadata")
BytesStorageMetadata = _stand_in("BytesStorageMetadata")
ChunkStorageMetadata = _stand_in("ChunkStorageMetadata")
MetadataIndex = _stand_in("MetadataIndex")
StorageInfo = _stand_in("_StorageInfo", "torch.distributed.checkpoint.filesystem")


class Called:
    """Pickled as a call of a function of this name."""

    def __init__(self, name, *arguments):
        self.name, self.arguments = name, arguments

    def __reduce__(self):
        module, _, name = self.name.rpartition(".")
        function = type(name, (), {"__module__": module})
        return function, self.arguments


class TensorProperties(Foreign):
    __module__ = _TYPES

    def __getstate__(self):
        layout = Called("torch.serialization._get_layout", "torch.strided")
        return self.dtype, layout, False, Called(f"{_TYPES}._MEM_FORMAT_ENCODING", 0), False


class Global(Foreign):
    """Pickled as what stands under this name."""

    def __reduce__(self):
        return self.name


class _Pickler(pickle._Pickler):
    """Writes names as they are, where pickle would look them up first."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_global(self, obj, name=None):
        module = "torch" if isinstance(obj, Global) else obj.__module__
        self.save(module)
        self.save((name or obj.__qualname__).removeprefix("torch."))
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)

    dispatch[type] = save_global


def pickled(value, protocol=4):
    room = io.BytesIO()
    _Pickler(room, protocol).dump(value)
    return room.getvalue()


def size_of(shape):
    return Called("torch.Size", tuple(shape))


def values(number=1.0):
    generator = torch.Generator().manual_seed(2)
    return {n: torch.randn(s, generator=generator) * number for n, s in SHAPES.items()}


def chunk(offsets, sizes):
    return ChunkStorageMetadata(offsets=size_of(offsets), sizes=size_of(sizes))


def tensor_metadata(shape):
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=Global(name="torch.float32")),
        size=size_of(shape),
        chunks=[chunk((0,) * len(shape), shape)],
    )


def dcp_folder(folder, tensors):
    """A distributed checkpoint of one process, with an object beside the tensors; its contents."""
    folder.mkdir(parents=True, exist_ok=True)
    told, places, at = {}, {}, 0
    with (folder / DCP_FILE).open("wb") as file:
        for name, tensor in tensors.items():
            room = io.BytesIO()
            torch.save(tensor, room)
            length = file.write(room.getvalue())
            told[name] = tensor_metadata(tuple(tensor.shape))
            index = MetadataIndex(fqn=name, offset=size_of((0,) * tensor.ndim), index=0)
            places[index] = StorageInfo(
                relative_path=DCP_FILE, offset=at, length=length, transform_descriptors=None
            )
            at += length
    told["step"] = BytesStorageMetadata()
    metadata = Metadata(
        state_dict_metadata=told,
        planner_data={name: tuple(name.split(".")) for name in told},
        storage_data=places,
        storage_meta=None,
        version="1.0.0",
    )
    (folder / ".metadata").write_bytes(pickled(metadata))
    return metadata


def hf_folder(folder, tensors, *, config=MODEL, **more):
    """The model in one file of Hugging Face's, with more in its config.json."""
    write_model(
        LocalStorage(folder),
        config,
        lambda want: {x: tensors[x.name] for x in want},
        config_of(config, "float32"),
    )
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
