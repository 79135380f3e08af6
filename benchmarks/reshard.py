"""Saving, loading and resharding a training state: Remesh against torch's distributed checkpoint.

Both hold the same tensors (weights and both moments of AdamW) cut in the same way over the same
processes: ZeRO 3 or FSDP2 by rows, then tensor parallelism. Both put files on disk with fsync, and
of both the checkpoints before the newest are deleted, outside the clock, as a run deletes them: so
both write into memory and places that the machine has used before. Only Remesh hashes what it
writes and verifies what it reads.

A first save is that of a mesh which has done a step, as in a run: what is to be copied, and where
to, has been found meanwhile. A start reads into memory that was made for it. What is loaded stands
in the page cache, but for what was saved right before: Remesh's save leaves it on the disk alone.
"""

import argparse
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import torch
from measuring.ranks import in_turns, on_ranks, share_store
from measuring.rows import Row, cost, report
from peers.dcp_state import DcpState
from torch import distributed as dist

from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.worker.saver import Saver
from remesh.data.durable import Disk
from remesh.orchestrator.worker.heard import FileLost, FileWritten
from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.holding.written_part import own_part
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig
from remesh.parallel.spec import EngineSpec, ZeroSpec
from remesh.parallel.state.checkpoint import commit
from remesh.parallel.state.reading import read_into
from remesh.parallel.state.root_manifest import (
    CheckpointManifest,
    CheckpointRef,
    DataPosition,
    ShardFile,
)
from remesh.parallel.state.storage import Blob, Head
from remesh.parallel.step.engine import Engine

PEER = "torch DCP"
Times = Mapping[str, tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and a smaller state")
    quick = parser.parse_args().quick
    models = [model_of(256, 4)] if quick else [model_of(256, 4), model_of(640, 6)]
    rows, parts = [], []
    for model in models:
        for ranks in (1, 4):
            megabytes, times, save_ms = on_ranks(ranks, measure, model, 5)
            rows += rows_of(ranks, megabytes, times)
            parts.append(f"a save, {place(ranks, megabytes)}: {told(save_ms)}")
    report("reshard", rows)
    print("\nWhere the time of Remesh goes, on one rank", *parts, sep="\n")


def model_of(width: int, num_layers: int) -> ModelConfig:
    return ModelConfig(
        num_layers=num_layers,
        width=width,
        num_heads=8,
        num_kv_heads=8,
        ffn_width=4 * width,
        vocab_size=8192,
        seq_len=128,
    )


def rows_of(ranks: int, megabytes: float, times: Times) -> list[Row]:
    return [
        cost(
            f"{case}, {place(ranks, megabytes)}",
            "one memcpy" if "memcpy" in case else PEER,
            pair,
            "ms",
        )
        for case, pair in times.items()
    ]


def place(ranks: int, megabytes: float) -> str:
    return f"{megabytes:.0f} MB, {ranks} {'rank' if ranks == 1 else 'ranks'}"


def told(parts_ms: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {ms:.1f} ms" for part, ms in parts_ms.items())


def measure(
    rendezvous: Rendezvous, model: ModelConfig, rounds: int
) -> tuple[float, Times, dict[str, float]]:
    """The size of the state, the milliseconds of each case, Remesh's and the other's, and those of
    the parts of Remesh's save.
    """
    sharded = Mesh.form(rendezvous, GenerationFence(), Layout(dp=rendezvous.size), rendezvous.size)
    tensor = Mesh.form(
        replace(rendezvous, name="tensor"), GenerationFence(), Layout(tp=rendezvous.size)
    )
    world = sharded.world
    store = share_store(world, rendezvous.op_timeout_s)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
    folder = Path(tempfile.mkdtemp(prefix="reshard-")) if world.rank == 0 else None
    folder = _told(folder)
    ours = Ours(model, sharded, tensor, folder / "remesh")
    theirs = DcpState(model, folder / "dcp")
    try:
        times = _times(ours, theirs, rounds)
    finally:
        dist.barrier()
        if world.rank == 0:
            shutil.rmtree(folder)
    return ours.state_bytes / 1e6, times, ours.storage.parts_ms()


def _times(ours: "Ours", theirs: DcpState, rounds: int) -> Times:
    world = ours.sharded.world

    def between() -> None:
        ours.finish()
        theirs.finish()

    def afresh() -> None:
        between()
        ours.prepare()
        theirs.prepare()

    def just_saved() -> None:
        between()
        ours.save()
        theirs.save()

    def turns(
        *contestants: Callable[[], None], prepare: Callable[[], None] = between
    ) -> tuple[float, float]:
        one, other = in_turns(world, contestants, rounds, prepare)
        return one, other

    times = {
        "stall of the first save / memcpy": turns(ours.start_save, ours.copy_part, prepare=afresh),
        "stall of a save / memcpy": turns(ours.start_save, ours.copy_part),
        "stall of the first asynchronous save": turns(
            ours.start_save, theirs.start_save, prepare=afresh
        ),
        "stall of an asynchronous save": turns(ours.start_save, theirs.start_save),
        "save": turns(ours.save, theirs.save),
        "load, same layout": turns(ours.load, theirs.load),
        "load into new memory": turns(ours.load_new, theirs.load_new),
        "load, just saved": turns(ours.load, theirs.load, prepare=just_saved),
    }
    if world.size > 1:
        times["load, other layout"] = turns(ours.load_other, theirs.load_other)
        times["change of layout"] = turns(ours.change, theirs.change)
    return times


class TimedDisk(Disk):
    """Adds up the seconds of what a save does to a disk."""

    def __init__(self, spent_s: Counter[str]) -> None:
        self.spent_s = spent_s

    def place(self, file: BinaryIO, data: memoryview, at: int) -> int:
        with spent(self.spent_s, "writing"):
            return super().place(file, data, at)

    def sync(self, file: BinaryIO) -> None:
        with spent(self.spent_s, "sync of files"):
            super().sync(file)

    def sync_folder(self, folder: Path) -> None:
        with spent(self.spent_s, "sync of folders"):
            super().sync_folder(folder)


class TimedStorage(LocalStorage):
    """Knows what a put of a shard consists of."""

    def __init__(self, root: Path) -> None:
        self.spent_s: Counter[str] = Counter()
        self.num_puts = 0
        super().__init__(root, TimedDisk(self.spent_s))

    def put_if_absent(self, path: str, data: Blob, head: Head | None = None) -> bool:
        if head is None:
            return super().put_if_absent(path, data)
        self.num_puts += 1
        with spent(self.spent_s, "all from copy to name"):
            return super().put_if_absent(path, data, replace(head, fill=partial(self.fill, head)))

    def fill(self, head: Head) -> None:
        with spent(self.spent_s, "hashes beside it"):
            head.fill()

    def parts_ms(self) -> dict[str, float]:
        return {part: 1e3 * s / self.num_puts for part, s in self.spent_s.items()}


@contextmanager
def spent(spent_s: Counter[str], part: str) -> Iterator[None]:
    started_s = time.perf_counter()
    yield
    spent_s[part] += time.perf_counter() - started_s


class Ours:
    """A rank's state under ZeRO 3, and memory for the same state under tensor parallelism."""

    def __init__(self, model: ModelConfig, sharded: Mesh, tensor: Mesh, folder: Path) -> None:
        self.sharded, self.tensor = sharded, tensor
        self.engine, self.other = Engine(_spec(model)), Engine(_spec(model))
        self.engine.form(sharded)
        self.engine.reset()
        self.other.form(tensor)
        self.storage = TimedStorage(folder)
        self.events: SimpleQueue[FileWritten | FileLost] = SimpleQueue()
        part = own_part(self.engine.shard_state, sharded)
        self.prepare()
        self.source = torch.cat([tensor.flatten().view(torch.uint8) for _, tensor in part])
        self.target = torch.empty_like(self.source)
        size = torch.tensor(self.source.nbytes)
        all_reduce_(sharded.world, size)
        self.state_bytes = int(size)
        self.step = 1000
        self.committed = CheckpointRef(step=0, generation=1)
        self.saving: CheckpointRef | None = None

    def prepare(self) -> None:
        """As after the first step of a mesh, by a saver that has no memory of another."""
        self.saver = Saver(start=0, storage=self.storage, tell=self.events.put)
        world = self.sharded.world
        part = partial(own_part, self.engine.shard_state, self.sharded)
        self.saver.prepare(part, rank=world.rank, num_writers=world.size)
        while not self.saver.is_ready:
            time.sleep(0.01)

    def copy_part(self) -> None:
        self.target.copy_(self.source)

    def start_save(self) -> None:
        self.step += 1
        self.saving = CheckpointRef(step=self.step, generation=1)
        self.saver.save(GenerationFence(), step=self.step, generation=1)

    def finish(self) -> None:
        """What was started is on disk, and what was saved before is gone."""
        if self.saving:
            self.events.get()
        self.saving = None
        newest = CheckpointRef(step=self.step, generation=1)
        if self.sharded.world.rank == 0:
            for name in self.storage.folders():
                if name < newest.name and name != self.committed.name:
                    shutil.rmtree(self.storage.root / name)

    def save(self) -> None:
        self.start_save()
        event = self.events.get()
        assert isinstance(event, FileWritten)
        assert self.saving
        files: list[ShardFile | None] = [None] * self.sharded.world.size
        dist.all_gather_object(files, event.files[0])
        if self.sharded.world.rank == 0:
            commit(self.storage, _manifest(self.saving, tuple(f for f in files if f)))
        all_reduce_(self.sharded.world, torch.zeros(1))
        self.committed, self.saving = self.saving, None

    def load(self) -> None:
        _read(self.engine, self.storage, self.committed)

    def load_new(self) -> None:
        fresh = Engine(self.engine.spec)
        fresh.form(self.sharded)
        _read(fresh, self.storage, self.committed)

    def load_other(self) -> None:
        _read(self.other, self.storage, self.committed)

    def change(self) -> None:
        at_step = self.engine.at_step
        assert at_step is not None
        self.other.share(self.engine.holding(), at_step)


def _spec(model: ModelConfig) -> EngineSpec:
    return EngineSpec(
        model=model,
        seed=0,
        num_leaves=4,
        microbatches_per_leaf=1,
        microbatch=1,
        lr=LrCurve(peak=1e-3),
        optimizer=AdamW(),
        clip=1.0,
        zero=ZeroSpec(stage=3),
    )


def _read(engine: Engine, storage: LocalStorage, ref: CheckpointRef) -> None:
    engine.at_step = None  # what it holds counts for nothing: it is read over
    state = engine.landing()
    read_into(storage, ref, dict(state.fragments()))
    engine.adopt(state, ref.step)


def _manifest(ref: CheckpointRef, files: tuple[ShardFile, ...]) -> CheckpointManifest:
    return CheckpointManifest(
        step=ref.step,
        generation=ref.generation,
        fingerprint={},
        bit_key="",
        data=DataPosition(digest="", position=0),
        files=files,
        created_by={},
    )


def _told(folder: Path | None) -> Path:
    """What rank 0 knows."""
    told = [folder]
    dist.broadcast_object_list(told)
    assert told[0]
    return told[0]


if __name__ == "__main__":
    main()
