"""torch distributed checkpoints, in and out.

Two forms exist. Those of HuggingFaceStorageWriter are safetensors, and read like any other. The
classic one has a table of contents `.metadata`, a pickle, and files of zip archives, each with one
box of a tensor: its numbers as they are, beside a pickle with their shape. There is no other way to
learn where the boxes lie, so `remesh checkpoint import --from dcp`, and nothing else, looks into
these pickles with `opcodes.plain_data`: as data, within a list of names, never by unpickling. The
loader of torch is not used, since it unpickles `.metadata` without any check. A checkpoint of a run
is never read this way.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remesh.parallel.files.foreign import Stored, counts, safetensors_file, tensor_name
from remesh.parallel.files.opcodes import Made, Named, plain_data
from remesh.parallel.files.ranged_file import Archive, RangedFile
from remesh.parallel.plan.errors import CheckpointError
from remesh.parallel.state.bounded_json import brief, parse, shown
from remesh.parallel.state.fragments import Fragment, Numbers
from remesh.parallel.state.headers import DTYPES
from remesh.parallel.state.storage import Storage

METADATA = ".metadata"
MAX_METADATA_BYTES = 256 * 2**20

_MAX_TENSOR_PICKLE_BYTES = 4096
_ZIP = b"PK\x03\x04"
_SHARDING = "DCP_SHARDING_INFO"
_FILE = re.compile(r"[\w.-]{1,200}\.distcp", re.ASCII)
_TYPES = "torch.distributed.checkpoint.metadata."
_STORAGE_INFO = "torch.distributed.checkpoint.filesystem._StorageInfo"
_REBUILD = "torch._utils._rebuild_tensor_v2"
_STORAGES = {
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
}
_IN_METADATA = frozenset(
    [
        *(
            _TYPES + name
            for name in (
                "Metadata",
                "TensorStorageMetadata",
                "BytesStorageMetadata",
                "TensorProperties",
                "ChunkStorageMetadata",
                "MetadataIndex",
                "StorageMeta",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        *(f"torch.{dtype}" for dtype in (*DTYPES, "complex64", "complex128")),
        _STORAGE_INFO,
        "torch.Size",
        "torch.serialization._get_layout",
        "collections.OrderedDict",
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath",
    ]
)
_IN_TENSORS = frozenset([*_STORAGES, _REBUILD, "collections.OrderedDict"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box of a tensor, and where a file holds it: its numbers, or an archive with them in it."""

    fragment: Fragment
    path: str
    start: int
    archive_bytes: int = 0


def boxes_in(storage: Storage) -> list[Box]:
    """Every box of every tensor. Cost: the table of contents, or the headers of all files.

    Raises: CheckpointError with the cure, with nothing of any file run.
    """
    found = [path for path in storage.list("") if "/" not in path]
    if METADATA in found:
        return _classic(storage)
    files = [path for path in found if path.endswith(".safetensors")]
    if not files:
        raise CheckpointError(
            f"there is neither {METADATA} nor a safetensors file; name the folder of a torch "
            "distributed checkpoint"
        )
    return list(_safetensors(storage, files))


def located(storage: Storage, box: Box) -> Stored:
    """Where the numbers of a box lie. Cost: some small reads if they are in an archive.

    Raises: CheckpointError if the archive tells of another tensor, with nothing of it run.
    """
    if not box.archive_bytes:
        return Stored(fragment=box.fragment, path=box.path, start=box.start)
    try:
        start = _start_in_archive(storage, box)
    except FileNotFoundError:
        raise CheckpointError(f"{box.path} is missing; fetch it again") from None
    except CheckpointError as error:
        raise CheckpointError(f"{box.path}: {box.fragment}: {error}") from None
    except (ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise CheckpointError(
            f"{box.path}: {box.fragment} cannot be read ({brief(error)}); save the checkpoint "
            "again, or as safetensors with torch's HuggingFaceStorageWriter"
        ) from None
    return Stored(fragment=box.fragment, path=box.path, start=box.start + start)


def _safetensors(storage: Storage, paths: Iterable[str]) -> Iterator[Box]:
    """Boxes stand under the names of their tensors, with their offsets in the file's metadata."""
    found = [box for path in paths for box in _boxes_of_file(storage, path)]
    ends: dict[str, Numbers] = {}
    for box in found:
        part = box.fragment
        own = tuple(start + size for start, size in zip(part.offsets, part.sizes, strict=True))
        before = ends.get(part.name, own)
        ends[part.name] = tuple(max(pair) for pair in zip(own, before, strict=False))
    for box in found:
        part = box.fragment
        yield replace(box, fragment=replace(part, global_shape=ends[part.name]))


def _boxes_of_file(storage: Storage, path: str) -> Iterator[Box]:
    file = safetensors_file(storage, path)
    offsets = _saved_offsets(path, file.metadata.get(_SHARDING, "{}"))
    for one in file.stored:
        part = one.fragment
        at = offsets.get(part.name, part.offsets)
        if len(at) != len(part.sizes):
            raise CheckpointError(f"{path}: the offsets {at} of {part.name} are not its own")
        yield Box(fragment=replace(part, offsets=at), path=path, start=one.start)


def _saved_offsets(path: str, encoded: str) -> dict[str, Numbers]:
    try:
        told = parse(encoded.encode(), max_bytes=MAX_METADATA_BYTES, max_values=4_000_000)
        return {name: counts(value["saved_offsets"]) for name, value in told.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: {_SHARDING} tells no offsets ({brief(error)})") from None


def _classic(storage: Storage) -> list[Box]:
    encoded = storage.get_range(METADATA, 0, MAX_METADATA_BYTES + 1)
    if len(encoded) > MAX_METADATA_BYTES:
        raise CheckpointError(
            f"{METADATA} has more than {MAX_METADATA_BYTES >> 20} MiB; save the checkpoint as "
            "safetensors with torch's HuggingFaceStorageWriter"
        )
    try:
        metadata = _fields(plain_data(encoded, _IN_METADATA), _TYPES + "Metadata")
        return list(_boxes(metadata))
    except CheckpointError as error:
        raise CheckpointError(f"{METADATA}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{METADATA} is not the metadata of a torch distributed checkpoint "
            f"({type(error).__name__}: {brief(error)}); save it again, or as safetensors with "
            "torch's HuggingFaceStorageWriter"
        ) from None


def _boxes(metadata: Mapping[str, Any]) -> Iterator[Box]:
    places: dict[tuple[str, Numbers], Mapping[str, Any]] = {}
    for key, info in metadata["storage_data"].pairs:
        index = _fields(key, _TYPES + "MetadataIndex")
        if index.get("offset") is not None:
            of = tensor_name(index["fqn"]), _size(index["offset"])
            places[of] = _fields(info, _STORAGE_INFO)
    for key, told in metadata["state_dict_metadata"].pairs:
        if told.what != _TYPES + "TensorStorageMetadata":
            continue
        name = tensor_name(key)
        tensor = _fields(told, told.what)
        dtype = _dtype(tensor["properties"])
        for chunk in tensor["chunks"]:
            box = _fields(chunk, _TYPES + "ChunkStorageMetadata")
            offsets = _size(box["offsets"])
            place = places[name, offsets]
            if place.get("transform_descriptors"):
                raise ValueError(f"{name} is compressed or encrypted")
            yield Box(
                fragment=Fragment(
                    name=name,
                    global_shape=_size(tensor["size"]),
                    offsets=offsets,
                    sizes=_size(box["sizes"]),
                    dtype=dtype,
                ),
                path=_file_name(place["relative_path"]),
                start=counts([place["offset"]])[0],
                archive_bytes=counts([place["length"]])[0],
            )


def _start_in_archive(storage: Storage, box: Box) -> int:
    """The box's own pickle has to tell the shape that is expected."""
    size = box.archive_bytes
    if storage.get_range(box.path, box.start, len(_ZIP)) != _ZIP:
        raise ValueError("no zip archive begins where it should")
    archive = Archive(RangedFile(storage, box.path, box.start, size), size)
    start, num_bytes = archive.place("data/0")
    told = plain_data(archive.read("data.pkl", _MAX_TENSOR_PICKLE_BYTES), _IN_TENSORS)
    if archive.read("byteorder", 16) != b"little":
        raise ValueError("its bytes are in the other order")
    _check_tensor(told, box.fragment)
    if num_bytes != box.fragment.num_bytes:
        raise ValueError(f"it has {num_bytes} bytes, expected {box.fragment.num_bytes}")
    return start


def _check_tensor(told: Any, fragment: Fragment) -> None:
    """Whether these are the numbers of the box, row after row and nothing else."""
    if not isinstance(told, Made) or told.what != _REBUILD:
        raise ValueError("it is no plain tensor")
    storage, offset, sizes, strides = told.args[:4]
    kind = storage.args[0][1].name
    if _STORAGES.get(kind) != fragment.dtype:
        raise ValueError(f"it is a {kind} of a {fragment.dtype} tensor; save floats")
    rows = tuple(math.prod(fragment.sizes[dim + 1 :]) for dim in range(len(fragment.sizes)))
    is_plain = all(
        size == 1 or stride == expected
        for size, stride, expected in zip(fragment.sizes, strides, rows, strict=True)
    )
    if offset != 0 or counts(sizes) != fragment.sizes or not is_plain:
        raise ValueError("it does not lie row after row; save it after contiguous()")


def _fields(made: Any, kind: str) -> dict[str, Any]:
    if not isinstance(made, Made) or made.what != kind:
        raise ValueError(f"no {kind.rpartition('.')[2]}")
    return {key: value for key, value in made.state.pairs if isinstance(key, str)}


def _size(made: Made) -> Numbers:
    if made.what != "torch.Size":
        raise ValueError("a size is none")
    (sizes,) = made.args
    return counts(sizes)


def _dtype(properties: Made) -> str:
    state: Sequence[Any] = properties.state
    if not isinstance(state[0], Named):
        raise TypeError("a dtype is none")
    return state[0].name.removeprefix("torch.")


def _file_name(value: Any) -> str:
    if not isinstance(value, str) or not _FILE.fullmatch(value):
        raise ValueError(f"{shown(value)} is no file beside it")
    return value
