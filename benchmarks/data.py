"""Samples in a shuffled order from local files: Remesh's stream against memory maps.

The memory maps verify nothing, keep a permutation of all rows in memory and die of SIGBUS when a
file is truncated under them. Bare, they show what reading costs when none of that matters; behind
torch's DataLoader they are what a training script commonly uses.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import xxhash
from measuring.rows import Row, cost, report
from torch.utils.data import DataLoader, Dataset

from remesh.data.building.prepare import build
from remesh.data.manifest import Manifest
from remesh.data.order import rows_of
from remesh.data.row_hashes import RowHashes
from remesh.data.skips import Skips
from remesh.data.stream import Stream
from remesh.data.windows import BlockIndex

ROW_TOKENS = 2048
BATCH = 32
Run = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The same rows as a Remesh dataset and as one plain file."""

    folder: Path
    plain: Path
    num_rows: int

    def stream(self) -> Stream:
        manifest = Manifest.load(self.folder)
        return Stream(self.folder, manifest, global_batch=BATCH, seed=0, skips=Skips())

    def memory_map(self) -> np.memmap:
        return np.memmap(self.plain, np.uint16, "r", shape=(self.num_rows, ROW_TOKENS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller data, in seconds")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(Path(folder), 8_192 if quick else 51_200)
        rounds = 3 if quick else 9
        rows = [
            shuffled(files, rounds, BATCH, "numpy.memmap"),
            shuffled(files, rounds, 2, "numpy.memmap"),
            shuffled(files, rounds, BATCH, "pyarrow memory map"),
            shuffled(files, rounds, BATCH, "torch DataLoader"),
            shuffled(files, rounds, BATCH, "preadv, one by one"),
            cold_epoch(files, rounds),
            first_batch(files, rounds),
            bytes_of_a_first_batch(files),
            order_of_a_step(10**7 if quick else 10**8, 3),
        ]
        tell_parts(files, rounds)
    report("data", rows)


def make_files(folder: Path, num_rows: int) -> Files:
    text = np.random.default_rng(0).integers(1, 128, num_rows * ROW_TOKENS, np.uint8)
    (folder / "text.txt").write_bytes(text.tobytes())
    build(str(folder / "text.txt"), folder / "data", ROW_TOKENS - 1)
    text.astype(np.uint16).tofile(folder / "plain.bin")
    return Files(folder=folder / "data", plain=folder / "plain.bin", num_rows=num_rows)


def shuffled(files: Files, rounds: int, size: int, peer: str) -> Row:
    """One warm epoch, handed out `size` samples a call."""
    epochs = {
        "numpy.memmap": epoch_of_a_memory_map,
        "pyarrow memory map": epoch_of_arrow,
        "torch DataLoader": epoch_of_a_loader,
        "preadv, one by one": epoch_of_reads,
    }
    stream = files.stream()
    out = np.empty((size, ROW_TOKENS), np.uint16)

    def epoch() -> None:
        for step in range(1, files.num_rows // BATCH + 1):
            for first in range(0, BATCH, size):
                stream.fill(step, first, out)

    ours, theirs = in_turns(epoch, epochs[peer](files, size), rounds)
    stream.close()
    scale = 1e6 / files.num_rows
    return cost(f"shuffled, {size} a call", peer, (ours * scale, theirs * scale), "us/sequence")


def epoch_of_a_memory_map(files: Files, size: int) -> Run:
    mapped, out = files.memory_map(), np.empty((size, ROW_TOKENS), np.uint16)
    permutation = np.random.default_rng(0).permutation(files.num_rows)

    def epoch() -> None:
        for at in range(0, files.num_rows, size):
            np.take(mapped, permutation[at : at + size], axis=0, out=out, mode="clip")

    return epoch


def epoch_of_arrow(files: Files, size: int) -> Run:
    """The same Arrow files, memory-mapped, with views of all blocks cached."""
    shards = [
        pa.ipc.open_file(pa.memory_map(str(path))) for path in sorted(files.folder.glob("*.arrow"))
    ]
    blocks = [
        np.frombuffer(batch.column(0).values.buffers()[1], np.uint16).reshape(-1, ROW_TOKENS)
        for shard in shards
        for batch in (shard.get_batch(number) for number in range(shard.num_record_batches))
    ]
    permutation = np.random.default_rng(0).permutation(files.num_rows)
    places = np.stack(np.divmod(permutation, len(blocks[0])), axis=1).tolist()
    out = np.empty((size, ROW_TOKENS), np.uint16)

    def epoch() -> None:
        for at in range(0, files.num_rows, size):
            for number, (block, row) in enumerate(places[at : at + size]):
                out[number] = blocks[block][row]

    return epoch


def epoch_of_a_loader(files: Files, size: int) -> Run:
    """A shuffling DataLoader over the memory map, in the same process."""
    loader = DataLoader(MappedRows(files.memory_map()), size, shuffle=True)

    def epoch() -> None:
        for _ in loader:
            pass

    return epoch


def epoch_of_reads(files: Files, size: int) -> Run:
    """A bare loop over the rows where they lie, which verifies nothing and counts no samples."""
    manifest, row_bytes = Manifest.load(files.folder), ROW_TOKENS * 2
    opened = [os.open(files.folder / shard.file, os.O_RDONLY) for shard in manifest.shards]
    places = [
        (descriptor, block.tokens_at + row * row_bytes)
        for descriptor, shard in zip(opened, manifest.shards, strict=True)
        for block in shard.blocks
        for row in range(block.rows)
    ]
    out = np.empty((size, ROW_TOKENS), np.uint16)
    view = memoryview(out).cast("B")
    pieces = [[view[at * row_bytes : (at + 1) * row_bytes]] for at in range(size)]
    order = np.random.default_rng(0).permutation(files.num_rows).tolist()

    def epoch() -> None:
        for at in range(0, files.num_rows, size):
            for piece, row in zip(pieces, order[at : at + size], strict=True):
                descriptor, offset = places[row]
                os.preadv(descriptor, piece, offset)

    return epoch


class MappedRows(Dataset[torch.Tensor]):
    def __init__(self, mapped: np.memmap) -> None:
        self.mapped = mapped

    def __len__(self) -> int:
        return len(self.mapped)

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self.mapped[row]))


def first_batch(files: Files, rounds: int) -> Row:
    """Open the data and hand out a first batch; Remesh verifies the rows that it reads."""
    out = np.empty((BATCH, ROW_TOKENS), np.uint16)

    def by_remesh() -> None:
        stream = files.stream()
        stream.check()
        stream.fill(1, 0, out)
        stream.close()

    def by_memory_map() -> None:
        permutation = np.random.default_rng(0).permutation(files.num_rows)
        np.take(files.memory_map(), permutation[:BATCH], axis=0, out=out, mode="clip")

    ours, theirs = in_turns(by_remesh, by_memory_map, rounds)
    return cost("start and first batch", "numpy.memmap", (ours * 1e3, theirs * 1e3), "ms")


def bytes_of_a_first_batch(files: Files) -> Row:
    """What a start with a shuffled order reads for its first batch, counted by the kernel."""
    out = np.empty((BATCH, ROW_TOKENS), np.uint16)
    stream = files.stream()
    stream.check()
    before = bytes_read()
    stream.fill(1, 0, out)
    read = bytes_read() - before
    stream.close()
    return cost("read for a first batch", "its rows", (read / 1e3, out.nbytes / 1e3), "kB")


def bytes_read() -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def cold_epoch(files: Files, rounds: int) -> Row:
    """One epoch of a stream that has read nothing before, from files in the page cache."""
    out = np.empty((BATCH, ROW_TOKENS), np.uint16)

    def epoch() -> None:
        stream = files.stream()
        for step in range(1, files.num_rows // BATCH + 1):
            stream.fill(step, 0, out)
        stream.close()

    ours, theirs = in_turns(epoch, epoch_of_a_memory_map(files, BATCH), rounds)
    scale = 1e6 / files.num_rows
    return cost("first epoch", "numpy.memmap", (ours * scale, theirs * scale), "us/sequence")


def order_of_a_step(num_rows: int, rounds: int) -> Row:
    """Which rows are one step of a shuffled epoch."""
    ours, theirs = in_turns(
        lambda: rows_of(0, BATCH, num_rows=num_rows, seed=0),
        lambda: np.random.default_rng(0).permutation(num_rows)[:BATCH],
        rounds,
    )
    case = f"order of a step, {num_rows:.0e} rows"
    return cost(case, "numpy permutation", (ours * 1e3, theirs * 1e3), "ms")


def tell_parts(files: Files, rounds: int) -> None:
    """Where the time of a shuffled row goes: what each part takes by itself, the rest is Python."""
    manifest, row_bytes = Manifest.load(files.folder), ROW_TOKENS * 2
    opened = [os.open(files.folder / shard.file, os.O_RDONLY) for shard in manifest.shards]
    index, hashes = BlockIndex.of(manifest, row_bytes), RowHashes(files.folder, manifest)
    rows = rows_of(0, files.num_rows, num_rows=files.num_rows, seed=0)
    window = index.window(0, rows, hashes)
    out = np.empty((BATCH, ROW_TOKENS), np.uint16)
    view = memoryview(out).cast("B")
    pieces = [view[at * row_bytes : (at + 1) * row_bytes] for at in range(BATCH)]
    steps = range(0, files.num_rows, BATCH)

    def reads() -> None:
        for at in steps:
            descriptors = map(opened.__getitem__, window.shards[at : at + BATCH])
            list(map(os.preadv, descriptors, zip(pieces), window.offsets[at : at + BATCH]))

    def proofs() -> None:
        for _ in steps:
            list(map(xxhash.xxh3_64_intdigest, pieces))

    def places() -> None:
        for start in range(0, files.num_rows, 8192):
            part = rows_of(start, start + 8192, num_rows=files.num_rows, seed=0)
            index.window(start, part, hashes)

    scale = 1e6 / files.num_rows
    read_s, proof_s = in_turns(reads, proofs, rounds)
    place_s, _ = in_turns(places, places, rounds)
    for descriptor in opened:
        os.close(descriptor)
    parts = {"preadv": read_s, "hashes": proof_s, "order and places": place_s}
    told = ", ".join(f"{part} {seconds * scale:.2f}" for part, seconds in parts.items())
    print(f"us of a shuffled row, {BATCH} a call: {told}; the rest is what a call takes by itself")


def in_turns(ours: Run, theirs: Run, rounds: int) -> tuple[float, float]:
    """Median CPU seconds of both, measured in turns after one round to warm up."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for run, seconds in zip((ours, theirs), times, strict=True):
            start = time.process_time()
            run()
            if number > 0:
                seconds.append(time.process_time() - start)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
