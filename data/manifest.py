"""What a dataset consists of: its shards, their blocks, the hashes of each block and of its rows.

The manifest is written last, so a folder with a manifest is a complete dataset. Its digest covers
what a reader gets (tokens, order, row length, tokenizer) and neither paths nor the name of the
source: it is the dataset's identity, and a copy of a dataset is the same dataset.
"""

import hashlib
import json
import re
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from remesh.data.data_error import DataError
from remesh.data.regular_file import read_bounded

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
ROW_HASHES = "row-hashes.bin"

_MAX_MANIFEST_BYTES = 1 << 30
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_HASH = re.compile(r"[0-9a-f]{16}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One Arrow record batch: where it stands in its shard and the xxh3 of exactly those bytes.

    From `tokens_at` in the shard on there are its rows and nothing else. `row_hashes` is the xxh3
    of their hashes, as they stand in the file beside the manifest.
    """

    offset: int
    size_bytes: int
    rows: int
    xxh3: str
    tokens_at: int
    row_hashes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One Arrow IPC file."""

    file: str
    size_bytes: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete dataset. Its rows have `row_tokens` = seq_len + 1 tokens.

    `read_with` are the options of the build that say how its source was read.
    """

    version: int = FORMAT_VERSION
    source: str
    source_digest: str
    tokenizer: str
    vocab_size: int
    row_tokens: int
    num_rows: int
    shards: tuple[Shard, ...]
    read_with: tuple[str, ...] = ()

    @property
    def seq_len(self) -> int:
        return self.row_tokens - 1

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides what a reader gets, as 64 hexadecimal digits."""
        content = {
            "version": self.version,
            "tokenizer": self.tokenizer,
            "vocab_size": self.vocab_size,
            "row_tokens": self.row_tokens,
            "blocks": [[block.rows, block.xxh3] for shard in self.shards for block in shard.blocks],
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def build_command(self, folder: Path) -> str:
        """The command that builds this dataset anew."""
        where = ["--out", str(folder), "--seq-len", str(self.seq_len)]
        return shlex.join(["remesh", "data", "build", self.source, *where, *self.read_with])

    def cure(self, folder: Path) -> str:
        """What to do about a file of it that is missing or damaged."""
        return f"build it again with: {self.build_command(folder)}"

    def to_json(self) -> str:
        values = {"digest": self.digest, **asdict(self)}
        if not self.read_with:
            del values["read_with"]
        return json.dumps(values, indent=1) + "\n"

    @staticmethod
    def load(folder: Path) -> "Manifest":
        """The manifest of a dataset's folder.

        Raises: DataError if there is none, or none that can be trusted.
        """
        path = folder / MANIFEST
        try:
            text = read_bounded(path, _MAX_MANIFEST_BYTES).decode()
        except FileNotFoundError:
            raise DataError(
                f"no data in {folder}: there is no {MANIFEST};"
                f" build it with: remesh data build SOURCE --out {folder}"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read {path}: {error}") from None
        return parse_manifest(text, str(path))


def parse_manifest(text: str, path: str) -> Manifest:
    """A manifest out of its JSON text, every field and sum checked; `path` is named in errors."""
    try:
        return _manifest(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path} is damaged or no manifest of Remesh: {reason};"
            " remove it and build the data again with: remesh data build"
        ) from None


def _manifest(raw: Any) -> Manifest:
    version = _field(raw, "version", int)
    if version != FORMAT_VERSION:
        raise ValueError(f"its version is {version}, this Remesh reads {FORMAT_VERSION}")
    manifest = Manifest(
        source=_field(raw, "source", str),
        source_digest=_field(raw, "source_digest", str),
        tokenizer=_field(raw, "tokenizer", str),
        vocab_size=_count(raw, "vocab_size"),
        row_tokens=_count(raw, "row_tokens"),
        num_rows=_count(raw, "num_rows"),
        shards=tuple(_shard(shard) for shard in _field(raw, "shards", list)),
        read_with=tuple(map(str, _field(raw, "read_with", list))) if "read_with" in raw else (),
    )
    rows = sum(block.rows for shard in manifest.shards for block in shard.blocks)
    if rows != manifest.num_rows:
        raise ValueError(f"its blocks hold {rows} rows, num_rows is {manifest.num_rows}")
    if len({shard.file for shard in manifest.shards}) != len(manifest.shards):
        raise ValueError("it names a shard twice")
    if (stated := _field(raw, "digest", str)) != manifest.digest:
        raise ValueError(f"its digest is {manifest.digest}, it states {stated}")
    return manifest


def _shard(raw: Any) -> Shard:
    file = _field(raw, "file", str)
    if not _SHARD_NAME.fullmatch(file):
        raise ValueError(f"{file!r} is no name of a shard")
    shard = Shard(
        file=file,
        size_bytes=_count(raw, "size_bytes"),
        blocks=tuple(_block(block) for block in _field(raw, "blocks", list)),
    )
    end = 0
    for block in shard.blocks:
        if block.offset < end or block.offset + block.size_bytes > shard.size_bytes:
            raise ValueError(f"a block of {file} at offset {block.offset} is out of place")
        end = block.offset + block.size_bytes
        if not block.offset <= block.tokens_at < end:
            raise ValueError(f"a block of {file} has its tokens at {block.tokens_at}, outside")
    return shard


def _block(raw: Any) -> Block:
    return Block(
        offset=_count(raw, "offset"),
        size_bytes=_count(raw, "size_bytes"),
        rows=_count(raw, "rows"),
        xxh3=_hash(raw, "xxh3"),
        tokens_at=_count(raw, "tokens_at"),
        row_hashes=_hash(raw, "row_hashes"),
    )


def _hash(raw: Any, key: str) -> str:
    value = _field(raw, key, str)
    if not _HASH.fullmatch(value):
        raise ValueError(f"{key} is {value!r}, which is no hash")
    return value


def _count(raw: Any, key: str) -> int:
    value = _field(raw, key, int)
    if not 1 <= value < 1 << 63:
        raise ValueError(f"{key} is {value}, expected a positive integer")
    return value


def _field(raw: Any, key: str, kind: type[T]) -> T:
    if not isinstance(raw, dict):
        raise TypeError(f"found {type(raw).__name__} where an object with {key} was expected")
    value = raw[key]
    if type(value) is not kind:
        raise TypeError(f"{key} is {type(value).__name__}, expected {kind.__name__}")
    return value
