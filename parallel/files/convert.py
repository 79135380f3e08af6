"""Llama, Qwen3 and Mixtral in Hugging Face's files: a config.json and safetensors files.

Only safetensors are read. A pytorch_model.bin is a pickle, a program that may do anything when it
is loaded; whoever trusts one can turn it into safetensors where it comes from.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from remesh.parallel.files.convert_config import model_of, words_of
from remesh.parallel.files.convert_names import hugging_face_name, names_in, parts_of
from remesh.parallel.files.foreign import Stored, safetensors_file
from remesh.parallel.files.weights import Weights, check_tied, weights_of
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.state.bounded_json import brief, parse, shown
from remesh.parallel.state.fragments import Fragment, whole
from remesh.parallel.state.headers import DTYPES
from remesh.parallel.state.shards import bytes_of
from remesh.parallel.state.storage import Storage

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_FILE_BYTES = 2 * 10**9
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

_FILE = re.compile(r"[\w.-]{1,200}\.safetensors", re.ASCII)
_MAX_JSON_BYTES = 64 * 2**20
_MAX_JSON_VALUES = 2_000_000

_NamedPart = tuple[str, Fragment]
Read = Callable[[list[Fragment]], Mapping[Fragment, Tensor]]


def read_model(storage: Storage, seq_len: int) -> ModelConfig:
    """The model that lies in a folder, for sequences of this length.

    Raises: CheckpointError, LayoutError, each with the cure.
    """
    return model_of(_json(storage, CONFIG), seq_len)


def read_words(storage: Storage) -> dict[str, Any]:
    """What the config.json of a folder says of the model's use. Raises: CheckpointError."""
    return words_of(_json(storage, CONFIG))


def open_weights(storage: Storage, config: ModelConfig, key: str | None = None) -> Weights:
    """The weights of a folder, as this model; of the copy behind `key` if there are several.

    Cost: the headers, and a tied head if there is one.
    Raises: CheckpointError with the cure; for pickles too, by name and unread.
    """
    stored = {one.fragment.name: one for one in _all_stored(storage)}
    naming = names_in(stored, config, key)
    names = naming.names
    weights = weights_of(storage, (stored[theirs] for theirs in names.values()), names, config)
    if naming.head:
        check_tied(weights, [stored[naming.head]])
    return weights


def write_model(
    storage: Storage,
    config: ModelConfig,
    read: Read,
    values: Mapping[str, Any],
    max_file_bytes: int = MAX_FILE_BYTES,
) -> list[str]:
    """Writes a model as `from_pretrained` reads it, config.json last; the names of the files.

    `read` gives weights by fragment, in fp32; they are rounded to the dtype that config.json is to
    have, which is `values`: those of `config_of`.
    Cost: memory for a file and its weights in fp32.
    """
    dtype = values["dtype"]
    wholes = [whole(name, shape, dtype) for name, shape in parameter_shapes(config).items()]
    tensors = [
        (hugging_face_name(name), part) for fragment in wholes for name, part in parts_of(fragment)
    ]
    files = list(_files(tensors, max_file_bytes))
    paths = [_file_name(number, len(files)) for number in range(1, len(files) + 1)]
    for path, parts in zip(paths, files, strict=True):
        storage.put(path, _encoded(parts, read))
    if len(files) > 1:
        weight_map = {
            name: path for path, parts in zip(paths, files, strict=True) for name, _ in parts
        }
        size = sum(fragment.num_bytes for fragment in wholes)
        storage.put(INDEX, _text({"metadata": {"total_size": size}, "weight_map": weight_map}))
        paths.append(INDEX)
    storage.put(CONFIG, _text(values))
    return [*paths, CONFIG]


def refuse_pickles(names: Iterable[str]) -> None:
    """Raises: CheckpointError if one of these files is a pickle by its name."""
    pickle = next((name for name in names if name.endswith(PICKLES)), None)
    if pickle is not None:
        raise CheckpointError(
            f"{brief(pickle)} is a pickle, which may run any program and is never read; save the "
            "model as safetensors where it comes from: model.save_pretrained(DIR)"
        )


def _all_stored(storage: Storage) -> Iterator[Stored]:
    found = [path for path in storage.list("") if "/" not in path]
    if INDEX in found:
        yield from _indexed(storage)
    elif SINGLE in found:
        yield from safetensors_file(storage, SINGLE).stored
    else:
        refuse_pickles(found)
        raise CheckpointError(f"there is neither {INDEX} nor {SINGLE}; name the folder of a model")


def _indexed(storage: Storage) -> Iterator[Stored]:
    weight_map = _json(storage, INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX} has no weight_map; fetch it again")
    promised: dict[str, list[str]] = defaultdict(list)
    for name, path in weight_map.items():
        promised[_beside(path)].append(name)
    for path, names in sorted(promised.items()):
        stored = {one.fragment.name: one for one in safetensors_file(storage, path).stored}
        lost = next((name for name in names if name not in stored), None)
        if lost is not None:
            raise CheckpointError(
                f"{path} lacks {shown(lost)}, which {INDEX} promises; fetch it again"
            )
        yield from (stored[name] for name in names)


def _beside(path: Any) -> str:
    if isinstance(path, str):
        refuse_pickles([path])
        if _FILE.fullmatch(path):
            return path
    raise CheckpointError(f"{INDEX} names {shown(path)}, no safetensors file beside it")


def _json(storage: Storage, path: str) -> dict[str, Any]:
    try:
        encoded = storage.get_range(path, 0, _MAX_JSON_BYTES + 1)
        values = parse(encoded, max_bytes=_MAX_JSON_BYTES, max_values=_MAX_JSON_VALUES)
    except FileNotFoundError:
        refuse_pickles(name for name in storage.list("") if "/" not in name)
        raise CheckpointError(f"there is no {path}; name the folder of a model") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is {error}; fetch it again") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is no JSON object; fetch it again")
    return values


def _files(tensors: Iterable[_NamedPart], max_bytes: int) -> Iterator[list[_NamedPart]]:
    """In the model's order, as many in one file as have room."""
    file: list[_NamedPart] = []
    num_bytes = 0
    for name, part in tensors:
        if file and num_bytes + part.num_bytes > max_bytes:
            yield file
            file, num_bytes = [], 0
        file.append((name, part))
        num_bytes += part.num_bytes
    yield file


def _file_name(number: int, count: int) -> str:
    return SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _encoded(tensors: Sequence[_NamedPart], read: Read) -> bytearray:
    """One file: the header, then the tensors in order. Laid out here to hold each byte once."""
    places: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, part in tensors:
        is_whole = part.sizes == part.global_shape
        places[name] = {
            "dtype": DTYPES[part.dtype][0],
            "shape": part.sizes if is_whole else part.sizes[1:],  # of one expert
            "data_offsets": (at, at + part.num_bytes),
        }
        at += part.num_bytes
    header = json.dumps(places, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    encoded = bytearray(8 + len(header) + at)
    encoded[: 8 + len(header)] = len(header).to_bytes(8, "little") + header
    _fill(memoryview(encoded)[8 + len(header) :], [part for _, part in tensors], read)
    return encoded


def _fill(room: memoryview, parts: list[Fragment], read: Read) -> None:
    masters = [replace(part, dtype="float32") for part in parts]
    found = read(masters)
    at = 0
    for part, master in zip(parts, masters, strict=True):
        dtype: torch.dtype = getattr(torch, part.dtype)
        tensor = found[master].to(dtype).contiguous()
        room[at : at + part.num_bytes] = bytes_of(tensor).data
        at += part.num_bytes


def _text(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
