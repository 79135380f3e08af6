"""Saving, loading and resharding a training state: Remesh against torch's distributed checkpoint.

Both hold the same tensors (weights and both moments of AdamW) cut in the same way over the same
processes: ZeRO 3 or FSDP2 by rows, then tensor parallelism. The peer has what its most careful user
would give it: cached plans, a stager that keeps its memory. Both put files on disk with fsync. Only
Remesh hashes what it writes and verifies what it reads.

A first save is that of a mesh which has done a step, as in a run: what is to be copied, and where
to, has been found meanwhile. A start reads into memory that was made for it.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import torch
from measuring.ranks import in_turns, on_ranks, share_store
from measuring.rows import Row, cost, report
from torch import Tensor
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, zeros

from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.worker.saver import Saver
from remesh.orchestrator.worker.heard import FileLost, FileWritten
from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.holding.written_part import own_part
from remesh.parallel.optim.adamw import AdamW
from remesh.parallel.optim.lr import LrCurve
from remesh.parallel.optim.slots import ADAMW_SLOTS
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.model_config import ModelConfig, parameter_shapes
from remesh.parallel.plan.shares import tensor_shares
from remesh.parallel.spec import EngineSpec, ZeroSpec
from remesh.parallel.state.checkpoint import commit
from remesh.parallel.state.reading import read_into
from remesh.parallel.state.root_manifest import (
    CheckpointManifest,
    CheckpointRef,
    DataPosition,
    ShardFile,
)
from remesh.parallel.step.engine import Engine

PEER = "torch DCP"
Times = Mapping[str, tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and a smaller state")
    quick = parser.parse_args().quick
    models = [model_of(256, 4)] if quick else [model_of(256, 4), model_of(640, 6)]
    rows = [
        row
        for model in models
        for ranks in (1, 4)
        for row in rows_of(ranks, *on_ranks(ranks, measure, model, 5))
    ]
    report("reshard", rows)


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
    where = f"{megabytes:.0f} MB, {ranks} {'rank' if ranks == 1 else 'ranks'}"
    return [
        cost(f"{case}, {where}", "one memcpy" if "memcpy" in case else PEER, pair, "ms")
        for case, pair in times.items()
    ]


def measure(rendezvous: Rendezvous, model: ModelConfig, rounds: int) -> tuple[float, Times]:
    """The size of the state, and the milliseconds of each case: Remesh's and the other's."""
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
    theirs = Theirs(model, folder / "dcp")
    try:
        times = _times(ours, theirs, rounds)
    finally:
        dist.barrier()
        if world.rank == 0:
            shutil.rmtree(folder)
    return ours.state_bytes / 1e6, times


def _times(ours: "Ours", theirs: "Theirs", rounds: int) -> Times:
    world = ours.sharded.world

    def between() -> None:
        ours.finish()
        theirs.finish()

    def afresh() -> None:
        between()
        ours.prepare()
        theirs.prepare()

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
    }
    if world.size > 1:
        times["load, other layout"] = turns(ours.load_other, theirs.load_other)
        times["change of layout"] = turns(ours.change, theirs.change)
    return times


class Ours:
    """A rank's state under ZeRO 3, and memory for the same state under tensor parallelism."""

    def __init__(self, model: ModelConfig, sharded: Mesh, tensor: Mesh, folder: Path) -> None:
        self.sharded, self.tensor = sharded, tensor
        self.engine, self.other = Engine(_spec(model)), Engine(_spec(model))
        self.engine.form(sharded)
        self.engine.reset()
        self.other.form(tensor)
        self.storage = LocalStorage(folder)
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
        """The file of the save that was started, if there is one, is on disk."""
        if self.saving:
            self.events.get()
        self.saving = None

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


class Theirs:
    """The same state as DTensors, and memory for it under tensor parallelism."""

    def __init__(self, model: ModelConfig, folder: Path) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.folder = folder
        self.model, self.mesh = model, mesh
        self.state = _dtensors(model, mesh, by_rows=True)
        self.other = _dtensors(model, mesh, by_rows=False)
        self.prepare()
        self.number = 0
        self.newest = folder
        self.uploading: Future[object] | None = None

    def prepare(self) -> None:
        self.stager = DefaultStager(StagingOptions(False, False, False, False))
        self.planner = dcp.DefaultSavePlanner(enable_plan_caching=True)

    def _path(self) -> Path:
        self.number += 1
        return self.folder / str(self.number)

    def start_save(self) -> None:
        started = dcp.async_save(
            self.state,
            checkpoint_id=self._path(),
            async_stager=self.stager,
            planner=self.planner,
        )
        assert isinstance(started, Future)
        self.uploading = started

    def finish(self) -> None:
        if self.uploading:
            self.uploading.result()
        self.uploading = None

    def save(self) -> None:
        self.newest = self._path()
        dcp.save(self.state, checkpoint_id=self.newest, planner=self.planner)

    def load(self) -> None:
        dcp.load(self.state, checkpoint_id=self.newest)

    def load_new(self) -> None:
        state = _dtensors(self.model, self.mesh, by_rows=True)
        dcp.load(state, checkpoint_id=self.newest)

    def load_other(self) -> None:
        dcp.load(self.other, checkpoint_id=self.newest)

    def change(self) -> None:
        self.save()
        self.load_other()


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


def _dtensors(model: ModelConfig, mesh: DeviceMesh, *, by_rows: bool) -> dict[str, Tensor]:
    """Weights and moments, cut by rows, or as our tensor parallelism cuts them."""
    shares = tensor_shares(model, mesh.size(), 0, sequence=False)
    return {
        tensor: zeros(shape, device_mesh=mesh, placements=[placement])
        for name, shape in parameter_shapes(model).items()
        for placement in [Shard(0) if by_rows else _placement(shape, shares[name].sizes)]
        for tensor in (name, *(slot.tensor(name) for slot in ADAMW_SLOTS))
    }


def _placement(shape: Sequence[int], local_shape: Sequence[int]) -> Placement:
    cut = [dim for dim, size in enumerate(shape) if local_shape[dim] < size]
    return Shard(cut[0]) if cut else Replicate()


def _told(folder: Path | None) -> Path:
    """What rank 0 knows."""
    told = [folder]
    dist.broadcast_object_list(told)
    assert told[0]
    return told[0]


if __name__ == "__main__":
    main()
