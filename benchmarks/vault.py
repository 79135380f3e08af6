"""What a snapshot costs a step, and what a restore from a vault takes.

One rank with a vault and a buddy, each in a process of its own on this machine: blocks of steps
with a snapshot after every step, and blocks with none, in turns. The copy stands beside one copy of
the same bytes by torch, its share of a step beside the hundredth that "auto" allows. A restore
reads the whole state out of a vault, its peer the same bytes from a checkpoint on disk.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from measuring.rows import Row, cost, report

from remesh.actors.node.leftovers import SHARED_MEMORY, folder_name
from remesh.actors.orders import FormOrder, VaultOrder
from remesh.actors.storage.file_storage import LocalStorage
from remesh.actors.vault.kept_shelf import KeptShelf
from remesh.actors.vault.slot_reader import reading
from remesh.actors.vault.vault_memory import VaultMemory
from remesh.actors.vault.vault_server import VaultServer
from remesh.actors.worker.preparing import engine_spec
from remesh.actors.worker.snapshot_taker import SnapshotTaker
from remesh.orchestrator.control.words.records import FreshState, VaultSlot
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.job.timers import Timers
from remesh.orchestrator.plan.rung import Rung
from remesh.orchestrator.vault.snapshot_pace import SHARE
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.slot_source import SlotSource
from remesh.parallel.plan.layout import Layout
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.checkpoint import commit
from remesh.parallel.state.reading import read_into
from remesh.parallel.state.root_manifest import (
    CheckpointManifest,
    CheckpointRef,
    DataPosition,
    ShardFile,
    shard_file_name,
)
from remesh.parallel.state.shards import encode_fragments, write_shard
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.work import TokenBuffer, Work

TINY = Path(__file__).parents[1] / "examples" / "tiny.toml"
TOKEN = "a token for the vaults of a test"
TIMERS = Timers(patience_s=1.0)
HOST = "127.0.0.1"
BLOCK = 4  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rows = []
    for name, spec, rounds in (
        ("tiny", engine_spec(load_job(TINY)), 5 if quick else 20),
        ("50M parameters", large(), 2 if quick else 6),
    ):
        with vault_process(0) as own, vault_process(1) as buddy:
            rows += Case(name, spec, rounds).rows(own, buddy)
    report("vault", rows)


def large() -> EngineSpec:
    """A small batch of short sequences: the worst that a copy can be set against."""
    spec = engine_spec(load_job(TINY))
    model = replace(
        spec.model,
        num_layers=8,
        width=640,
        num_heads=10,
        num_kv_heads=10,
        ffn_width=1760,
        vocab_size=8192,
    )
    return replace(spec, model=model, num_leaves=2, microbatches_per_leaf=1, microbatch=2)


class Case:
    def __init__(self, name: str, spec: EngineSpec, rounds: int) -> None:
        self._name = name
        self._rounds = rounds
        self._mesh = Mesh.alone(1)
        self._engine = Engine(spec)
        self._engine.form(self._mesh)
        self._engine.reset()
        self._copies_s: list[float] = []

    def rows(self, own: str, buddy: str) -> list[Row]:
        snapshots = SnapshotTaker(every=1, timers=TIMERS)
        snapshots.enter(order(own, buddy), self._mesh, self._engine.shard_state)
        while not snapshots.ballot(0)[1]:
            time.sleep(0.01)
        times = self._in_turns(snapshots)
        copy_s, step_s = statistics.median(self._copies_s), times[1] / 1e3
        step, safe_s = self._until_safe(snapshots)
        snapshots.leave()
        time.sleep(0.5)  # the vault tells of what nobody can write to any more
        return [
            cost(f"{self._name}: step with a snapshot", "step without", times, "ms"),
            cost(f"{self._name}: copy", "copy by torch", (1e3 * copy_s, self._plain_ms()), "ms"),
            cost(
                f"{self._name}: copy, share of a step",
                "allowed each step",
                (100 * copy_s / step_s, 100 * SHARE),
                "%",
            ),
            cost(f"{self._name}: from copy to buddy", "step", (1e3 * safe_s, 1e3 * step_s), "ms"),
            self._restore(own, step),
        ]

    def _in_turns(self, snapshots: SnapshotTaker) -> tuple[float, float]:
        """Median milliseconds a step with snapshots and without."""
        times: tuple[list[float], list[float]] = ([], [])
        self._step(None)
        for _ in range(self._rounds):
            for taken, with_snapshots in zip(times, (snapshots, None), strict=True):
                for number in range(BLOCK):
                    started_s = time.perf_counter()
                    self._step(with_snapshots)
                    if number:  # the first step still runs beside the copies of the block before
                        taken.append(1e3 * (time.perf_counter() - started_s))
        return statistics.median(times[0]), statistics.median(times[1])

    def _step(self, snapshots: SnapshotTaker | None) -> None:
        engine, step = self._engine, (self._engine.at_step or 0) + 1
        more = {"snapshots": partial(snapshots.ballot, step)} if snapshots else {}
        result = engine.step(
            step,
            Work(
                mesh=self._mesh,
                fence=self._mesh.world.fence,
                generation=1,
                fill=partial(fill, engine.spec.model.vocab_size),
                write_digest=str,
                stamp=lambda *_: None,
                **more,
            ),
        )
        if snapshots and result.stable_step is not None:
            snapshots.stable(result.stable_step)
            if result.snapshot:
                started_s = time.perf_counter()
                snapshots.take(step)
                self._copies_s.append(time.perf_counter() - started_s)

    def _until_safe(self, snapshots: SnapshotTaker) -> tuple[int, float]:
        """A step, and the seconds after its copy until it was sealed at the buddy."""
        while (step := self._engine.at_step or 0) > (snapshots.ballot(0)[0] or 0):
            snapshots.stable(snapshots.ballot(0)[0] or 0)
            if snapshots.ballot(step)[1]:
                break
            time.sleep(0.01)
        started_s = time.perf_counter()
        snapshots.take(step)
        while (snapshots.ballot(0)[0] or 0) < step:
            time.sleep(0.001)
        return step, time.perf_counter() - started_s

    def _plain_ms(self) -> float:
        """One copy of as many bytes into memory that was used before."""
        flats = [flat for shard in self._engine.shard_state.shards for flat in shard.tensors]
        targets = [flat.clone() for flat in flats]

        def copy() -> None:
            for target, flat in zip(targets, flats, strict=True):
                target.copy_(flat)

        return statistics.median(1e3 * timed(copy) for _ in range(7))

    def _restore(self, own: str, step: int) -> Row:
        held = self._engine.shard_state.held
        slot = VaultSlot(vault="", held=held, generation=1, step=step)
        source = SlotSource(
            name="slot",
            held=held,
            open=partial(reading, own, TOKEN, slot, TIMERS),
        )
        fresh = Engine(self._engine.spec)
        fresh.form(self._mesh)
        with tempfile.TemporaryDirectory() as folder:
            storage, ref = LocalStorage(Path(folder)), CheckpointRef(step=step, generation=1)
            path = f"{ref.name}/{shard_file_name(0, 1)}"
            file = write_shard(storage, path, encode_fragments(self._engine.fragments(), ref))
            commit(storage, manifest(ref, file))
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(5):
                times[0].append(timed(lambda: fresh.share(None, step, [source])))
                times[1].append(timed(lambda: read_into(storage, ref, dict(fresh.fragments()))))
        medians = tuple(1e3 * statistics.median(taken) for taken in times)
        return cost(
            f"{self._name}: restore", "checkpoint in the page cache", (medians[0], medians[1]), "ms"
        )


def timed(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def fill(vocab_size: int, first: int, out: TokenBuffer) -> tuple[int, int, int]:
    out[:] = np.random.default_rng(first).integers(0, vocab_size, out.shape, dtype=np.uint16)
    return first, first, len(out)


def manifest(ref: CheckpointRef, file: ShardFile) -> CheckpointManifest:
    return CheckpointManifest(
        step=ref.step,
        generation=ref.generation,
        fingerprint={},
        bit_key="",
        data=DataPosition(digest="", position=0),
        files=(file,),
        created_by={},
    )


def order(own: str, buddy: str) -> FormOrder:
    return FormOrder(
        generation=1,
        rank=0,
        store_host="",
        store_port=0,
        store_secret=b"",
        form_timeout_s=10,
        op_timeout_s=10,
        rung=Rung(layout=Layout()),
        restore=FreshState(),
        fills=False,
        from_step=0,
        vaults=VaultOrder(own=own, buddy=buddy, token=TOKEN),
    )


@contextmanager
def vault_process(number: int) -> Iterator[str]:
    """The address of a vault in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=keep_vault, args=(there, number), daemon=True)
    process.start()
    yield here.recv()
    here.send(None)
    process.join()


def keep_vault(pipe: Connection, number: int) -> None:
    memory = VaultMemory(SHARED_MEMORY / folder_name(f"bench{os.getppid()}", str(number)))
    memory.open()
    server = VaultServer.open(HOST, KeptShelf(memory), token=TOKEN, timers=TIMERS)
    pipe.send(server.address)
    with suppress(EOFError):  # of a benchmark that failed
        pipe.recv()
    server.close()
    memory.close()


if __name__ == "__main__":
    main()
