"""The trainer thread of a worker: forms, restores, trains, and parks when told or when broken.

A parked trainer holds no group and touches nothing, so only parking acknowledges a fence: the
control thread raises the fence, which frees the trainer from wherever it waits, and whoever comes
second, the parking or the request, sends the acknowledgement.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, assert_never

from remesh.actors.node.stamps import Field, Stamps
from remesh.actors.orders import FormOrder, SlotOrder, VaultOrder
from remesh.actors.vault.slot_reader import reading
from remesh.actors.worker.course import Course
from remesh.actors.worker.ordered_kills import Faults
from remesh.actors.worker.reporter import Reporter
from remesh.actors.worker.saver import Saver
from remesh.actors.worker.snapshot_taker import SnapshotTaker
from remesh.data.digest import StepDigest
from remesh.data.stream import Stream
from remesh.orchestrator.control.words.events import (
    Event,
    GroupBroken,
    RestoreFailed,
    SaveFailed,
    WorkerFormed,
    WorkerParked,
    WorkerRestored,
)
from remesh.orchestrator.control.words.records import (
    CheckpointState,
    FreshState,
    PeerState,
    StepRecord,
)
from remesh.orchestrator.control.words.recovery import slot_label
from remesh.orchestrator.job.job import Job
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.holding.shard_state import Holding
from remesh.parallel.holding.slot_source import SlotSource
from remesh.parallel.holding.written_part import own_part
from remesh.parallel.plan.errors import Cancelled, CheckpointError, GroupError, SlotError
from remesh.parallel.plan.step_result import StepResult
from remesh.parallel.state.reading import read_fragments
from remesh.parallel.state.root_manifest import parse_name
from remesh.parallel.state.storage import Storage
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.work import SampleSums, TokenBuffer, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerParts:
    """What a trainer works with; each is ready for use."""

    worker: str
    node_ip: str
    job: Job
    engine: Engine
    stream: Stream
    course: Course
    storage: Storage
    stamps: Stamps
    faults: Faults
    reporter: Reporter
    saver: Saver
    snapshots: SnapshotTaker
    post: Callable[[Event], None]


class Trainer:
    """`run` is the trainer thread; control threads call `form`, `fence`, `drain` and `move`."""

    def __init__(self, parts: TrainerParts) -> None:
        self._parts = parts
        self._fence = GenerationFence()
        self._orders: queue.Queue[FormOrder] = queue.Queue()
        self._parking = threading.Lock()
        self._parked = True
        self._unanswered: tuple[int, int] | None = None
        self._drain: tuple[int, bool, int] = (-1, False, 0)
        self._held_in = 0
        self.generation = 0

    def form(self, order: FormOrder) -> None:
        self._orders.put(order)

    def fence(self, generation: int, heard_step: int) -> None:
        """End this generation and all before it; WorkerParked follows once the trainer stands."""
        self._fence.up(generation)
        with self._parking:
            self._unanswered = max(self._unanswered or (0, 0), (generation, heard_step))
            self._answer()

    def drain(self, generation: int, *, save: bool, heard_step: int) -> None:
        """Leave this generation at the next step boundary that all ranks agree on."""
        self._drain = (generation, save, heard_step)

    def save_held(self, generation: int, step: int) -> None:
        """Write what is held of the state at this step, while the trainer stands."""
        error = "what a parked worker holds cannot be saved yet"
        self._parts.post(
            SaveFailed(worker=self._parts.worker, generation=generation, step=step, error=error)
        )

    def move(self, generation: int, vaults: VaultOrder) -> None:
        """Snapshots of this generation go to other vaults, as far as theirs are gone."""
        self._parts.snapshots.move(generation, vaults)

    def run(self) -> None:
        while True:
            order = self._orders.get()
            if order.generation <= self.generation:  # told twice
                continue
            with self._parking:
                self._parked = False
            self.generation = order.generation
            drained = self._run_generation(order)
            with self._parking:
                self._parked = True
                self._answer()
            if drained:
                asked, _, heard_step = self._drain
                known = heard_step if asked == order.generation else None
                self._post_parked(order.generation, known, drained=True)

    def _run_generation(self, order: FormOrder) -> bool:
        """Whether it ended at a step boundary. Errors of a group are told, not raised."""
        self._parts.reporter.enter(order.generation, reports=order.rank == 0)
        try:
            mesh = self._form(order)
            try:
                self._restore(order, mesh)
                self._parts.snapshots.enter(order, mesh, self._parts.engine.shard_state)
                return self._train(order, mesh)
            finally:
                self._parts.saver.release()
                self._parts.snapshots.leave()
                mesh.close()
        except Cancelled:
            return False
        except GroupError as error:
            broken, waited_for = str(error), error.waited_for
        self._parts.post(
            GroupBroken(
                worker=self._parts.worker,
                generation=order.generation,
                error=broken,
                waited_for=waited_for,
            )
        )
        return False

    def _form(self, order: FormOrder) -> Mesh:
        started_s = time.monotonic()
        mesh = Mesh.form(
            Rendezvous(
                host=order.store_host,
                port=order.store_port,
                secret=order.store_secret,
                generation=order.generation,
                rank=order.rank,
                size=order.rung.workers,
                node_ip=self._parts.node_ip,
                form_timeout_s=order.form_timeout_s,
                op_timeout_s=order.op_timeout_s,
            ),
            self._fence,
            order.rung.layout,
            order.rung.shards,
        )
        self._parts.stamps[Field.GENERATION] = order.generation
        self._parts.post(
            WorkerFormed(
                worker=self._parts.worker,
                generation=order.generation,
                form_s=time.monotonic() - started_s,
            )
        )
        return mesh

    def _restore(self, order: FormOrder, mesh: Mesh) -> None:
        started_s = time.monotonic()
        engine = self._parts.engine
        holding = engine.holding()
        engine.form(mesh, order.rung.leaves)
        match order.restore:
            case PeerState(step=step):
                if order.fills:
                    self._share(order, holding, step)
            case CheckpointState(step=step, name=name):
                self._read(order, name)
            case FreshState():
                engine.reset()
            case _:
                assert_never(order.restore)
        self._held_in = order.generation
        self._parts.post(
            WorkerRestored(
                worker=self._parts.worker,
                generation=order.generation,
                at_step=engine.at_step or 0,
                restore_s=time.monotonic() - started_s,
            )
        )

    def _share(self, order: FormOrder, holding: Holding | None, step: int) -> None:
        """Raises: Cancelled after RestoreFailed, as `_read`."""
        sources = [self._source(told) for told in order.slots]
        try:
            self._parts.engine.share(holding, step, sources)
        except SlotError as error:
            name, failure = error.slot, str(error)
        else:
            return
        self._fail_restore(order, name, failure)

    def _source(self, told: SlotOrder) -> SlotSource:
        timers = self._parts.job.timers
        return SlotSource(
            name=slot_label(told.slot),
            held=told.slot.held,
            open=partial(reading, told.address, told.token, told.slot, timers),
        )

    def _read(self, order: FormOrder, name: str) -> None:
        """Raises: Cancelled after RestoreFailed: the controller will fence this generation."""
        ref, engine = parse_name(name), self._parts.engine
        assert ref, name
        try:
            wanted = [fragment for fragment, _ in engine.fragments()]
            engine.load(read_fragments(self._parts.storage, ref, wanted), ref.step)
        except (CheckpointError, OSError) as error:
            failure = str(error)
        else:
            return
        self._fail_restore(order, name, failure)

    def _fail_restore(self, order: FormOrder, name: str, failure: str) -> NoReturn:
        self._parts.post(
            RestoreFailed(
                worker=self._parts.worker,
                generation=order.generation,
                name=name,
                error=failure,
            )
        )
        raise Cancelled(failure)

    def _train(self, order: FormOrder, mesh: Mesh) -> bool:
        """Train to the last step or to a drain. A last step that is not saved is saved again."""
        last_step = self._parts.job.train.steps
        if order.from_step == last_step:
            self._save(order, mesh, last_step)
        self._parts.course.enter(order.amendments, order.from_step)
        for step in range(order.from_step + 1, last_step + 1):
            self._fence.check(order.generation)
            self._parts.course.before(step)
            self._fire(order, step)
            result = self._step(order, mesh, step)
            due = step == last_step or step % self._parts.job.checkpoint.every == 0
            if due or result.save:
                self._save(order, mesh, step)
            if result.drain:
                break
        self._parts.reporter.flush()
        return True

    def _step(self, order: FormOrder, mesh: Mesh, step: int) -> StepResult:
        started_s = time.monotonic()
        drain, save, _ = self._drain
        asked = drain == order.generation
        sealed_step, ready = self._parts.snapshots.ballot(step)
        work = Work(
            mesh=mesh,
            fence=self._fence,
            generation=order.generation,
            fill=partial(self._fill, step),
            write_digest=_write_digest,
            stamp=self._stamp,
            drain=asked,
            save=asked and save,
            sealed_step=sealed_step,
            ready=ready,
        )
        result = self._parts.engine.step(step, work)
        self._snapshot(step, result)
        step_s = time.monotonic() - started_s
        record = StepRecord(step=step, did=result, step_s=step_s, ended_s=time.time())
        self._parts.reporter.add(record)
        return result

    def _snapshot(self, step: int, result: StepResult) -> None:
        if result.stable_step is not None:
            self._parts.snapshots.stable(result.stable_step)
        if result.snapshot:
            self._parts.snapshots.take(step)

    def _fill(self, step: int, first: int, out: TokenBuffer) -> SampleSums:
        digest = self._parts.stream.fill(step, first, out)
        return digest.high, digest.low, digest.count

    def _fire(self, order: FormOrder, step: int) -> None:
        self._parts.faults.fire(
            step,
            is_last_rank=order.rank == order.rung.workers - 1,
            is_node_victim=order.is_victim,
        )

    def _save(self, order: FormOrder, mesh: Mesh, step: int) -> None:
        self._parts.reporter.flush()
        saver = self._parts.saver
        if not saver.is_prepared:
            part = own_part(self._parts.engine.shard_state, mesh)
            saver.prepare(part, rank=order.rank, num_writers=order.rung.workers)
        saver.save(step=step, generation=order.generation)

    def _stamp(self, step: int, operation: int, phase: int) -> None:
        stamps = self._parts.stamps
        stamps[Field.STEP], stamps[Field.OPERATION], stamps[Field.PHASE] = step, operation, phase

    def _answer(self) -> None:
        """Acknowledge the newest fence, if there is one and the trainer stands outside of it."""
        if self._unanswered and self._parked:
            generation, heard_step = self._unanswered
            self._unanswered = None
            self._post_parked(generation, heard_step, drained=False)

    def _post_parked(self, generation: int, heard_step: int | None, *, drained: bool) -> None:
        self._parts.post(
            WorkerParked(
                worker=self._parts.worker,
                generation=generation,
                at_step=self._parts.engine.at_step,
                drained=drained,
                records=self._parts.reporter.since(heard_step),
                held_in=self._held_in,
            )
        )


def _write_digest(sums: SampleSums) -> str:
    high, low, count = sums
    return StepDigest(high=high, low=low, count=count).hex()
