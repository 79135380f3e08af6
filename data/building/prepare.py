"""Building a dataset: text in, shards of fixed-length rows and a manifest out.

Documents are laid end to end with a separator and cut into rows, so no row is padded; what is left
over at the end and fills no row is dropped. A token is a byte (vocabulary 256, the separator is
byte 0), stored as uint16 so that a tokenizer with a larger vocabulary changes no format.

Shards are written under a temporary name and the manifest comes last: a build that was killed
leaves no manifest, and the next one starts over, once it has removed what the killed one's record
names. One build a folder at a time holds its lock.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from remesh.data.blocks import TOKEN_BYTES, Tokens
from remesh.data.building.build_record import BuildRecord, shard_name
from remesh.data.building.documents import READ_PLAINLY, Documents, Reading, TellLine
from remesh.data.building.shard_writer import ShardWriter
from remesh.data.building.sources import Source, find_source
from remesh.data.data_error import DataError
from remesh.data.durable import durable_file
from remesh.data.manifest import MANIFEST, ROW_HASHES, Manifest, Shard
from remesh.data.row_hashes import RowHashes
from remesh.data.stream import shard_reader

BLOCK_BYTES = 1 << 20
BLOCKS_PER_SHARD = 16
MAX_SEQ_LEN = 1 << 24

TOKENIZER = "bytes"
VOCAB_SIZE = 256

TellProgress = Callable[[int, int], None]


def _nobody(_line: str) -> None:
    """Is told, and says nothing."""


def build(
    source: str,
    out_dir: Path,
    seq_len: int,
    *,
    reading: Reading = READ_PLAINLY,
    on_progress: TellProgress | None = None,
    tell: TellLine = _nobody,
) -> Manifest:
    """The manifest of a dataset in `out_dir`, built unless the very same one is there and whole.

    `on_progress` is told the bytes read so far and in all, about once a block; `tell` what is read,
    and what is left out or mended.
    Raises: DataError if the source is empty or unreadable, if `out_dir` cannot be written or holds
    other data.
    """
    if not 1 <= seq_len <= MAX_SEQ_LEN:
        raise DataError(f"seq_len={seq_len}: expected 1 to {MAX_SEQ_LEN}")
    found = find_source(source, reading.also)
    tell(str(found))
    text = _Text(found, reading, on_progress, tell)
    with _writable(out_dir), _locked(out_dir):
        record = BuildRecord(out_dir)
        if (out_dir / MANIFEST).exists():
            present = Manifest.load(out_dir)
            _refuse_other_data(present, out_dir, text.source, reading, seq_len)
            if _is_whole(present, out_dir):
                record.close()
                return present
            record.adopt([MANIFEST, ROW_HASHES, *(shard.file for shard in present.shards)])
        record.undo()
        manifest = _recorded(text, out_dir, seq_len, record)
    for line in text.documents.told():
        tell(line)
    return manifest


def _recorded(text: "_Text", out_dir: Path, seq_len: int, record: BuildRecord) -> Manifest:
    try:
        manifest = _write(text, out_dir, seq_len, record)
    except BaseException:
        record.undo()
        raise
    record.close()
    return manifest


class _Text:
    """A source's text on its way into blocks: counts and hashes what passes."""

    def __init__(
        self, source: Source, reading: Reading, on_progress: TellProgress | None, tell: TellLine
    ) -> None:
        self.source = source
        self.reading = reading
        self.documents = Documents(reading, tell)
        self.read_bytes = 0
        self._hash = xxhash.xxh3_128()
        self._on_progress = on_progress

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def pieces(self) -> Iterator[bytes]:
        for file in self.source.files:
            for piece in self.documents.pieces(file):
                self._hash.update(piece)
                self.read_bytes += len(piece)
                yield piece

    def blocks(self, row_tokens: int) -> Iterator[Tokens]:
        """The text in blocks of shape (rows, row_tokens)."""
        block_tokens = max(1, BLOCK_BYTES // (row_tokens * TOKEN_BYTES)) * row_tokens
        pending = bytearray()
        for piece in self.pieces():
            pending += piece
            while len(pending) >= block_tokens:
                yield _rows(pending[:block_tokens], row_tokens)
                del pending[:block_tokens]
                self._tell(self.read_bytes)
        if whole := len(pending) // row_tokens * row_tokens:
            yield _rows(pending[:whole], row_tokens)
        self._tell(self.source.size_bytes)

    def _tell(self, done_bytes: int) -> None:
        if self._on_progress is not None:
            total_bytes = self.source.size_bytes
            self._on_progress(min(done_bytes, total_bytes), total_bytes)


def _write(text: _Text, out_dir: Path, seq_len: int, record: BuildRecord) -> Manifest:
    record.add(MANIFEST)
    record.add(ROW_HASHES)
    with durable_file(out_dir / ROW_HASHES) as hashes:
        writing = _Writing(out_dir=out_dir, row_tokens=seq_len + 1, record=record, hashes=hashes)
        shards = tuple(writing.shards(text.blocks(seq_len + 1)))
    if not shards:
        raise DataError(
            f"{text.source.name} is too short: its text has {text.read_bytes} tokens,"
            f" a row takes seq_len + 1 = {seq_len + 1}"
        )
    manifest = Manifest(
        source=text.source.name,
        source_digest=text.digest,
        read_with=text.reading.options,
        tokenizer=TOKENIZER,
        vocab_size=VOCAB_SIZE,
        row_tokens=seq_len + 1,
        num_rows=sum(block.rows for shard in shards for block in shard.blocks),
        shards=shards,
    )
    with durable_file(out_dir / MANIFEST) as file:
        file.write(manifest.to_json().encode())
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """Where the shards of a build go, and the hashes of their rows."""

    out_dir: Path
    row_tokens: int
    record: BuildRecord
    hashes: BinaryIO

    def shards(self, blocks: Iterator[Tokens]) -> Iterator[Shard]:
        for number, first in enumerate(blocks):
            name = shard_name(number)
            self.record.add(name)
            with durable_file(self.out_dir / name) as file:
                writer = ShardWriter(file, self.hashes, self.row_tokens, VOCAB_SIZE)
                for rows in chain([first], islice(blocks, BLOCKS_PER_SHARD - 1)):
                    writer.write(rows)
                shard = writer.finish(name)
            yield shard


def _rows(text: bytearray, row_tokens: int) -> Tokens:
    return np.frombuffer(text, np.uint8).astype(np.uint16).reshape(-1, row_tokens)


def _refuse_other_data(
    present: Manifest, out_dir: Path, source: Source, reading: Reading, seq_len: int
) -> None:
    if present.seq_len != seq_len:
        difference = f"seq_len={present.seq_len}, not {seq_len}"
    elif present.tokenizer != TOKENIZER:
        difference = f'tokenizer "{present.tokenizer}", not "{TOKENIZER}"'
    elif present.source_digest != _source_digest(source, reading):
        difference = f"{present.source} as it was then, not {source.name} as it is now"
    else:
        return
    raise DataError(
        f"{out_dir} holds other data ({difference}); give another folder, or remove this one"
    )


def _source_digest(source: Source, reading: Reading) -> str:
    text = _Text(source, reading, None, _nobody)
    for _ in text.pieces():
        pass
    return text.digest


def _is_whole(manifest: Manifest, out_dir: Path) -> bool:
    try:
        RowHashes(out_dir, manifest).verify()
        for number, shard in enumerate(manifest.shards):
            with closing(shard_reader(out_dir, manifest, number)) as reader:
                reader.open()
                for block in range(len(shard.blocks)):
                    reader.verify(block)
    except DataError:
        return False
    return True


@contextmanager
def _locked(out_dir: Path) -> Iterator[None]:
    out_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _writable(out_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {out_dir}: {error.strerror}; make room for it, or give another folder"
        ) from None
