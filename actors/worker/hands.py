"""What a worker has decided, done: each duty that takes a while ends with the word of how it ended.

Whatever may last looks at the fence: operations of groups, and waits for storage, data and vaults.
What is cut short leaves the whole of what was held before, or nothing that counts.
"""

import time
from functools import partial
from typing import assert_never

from remesh.actors.node.stamps import Field
from remesh.actors.orders import FormOrder
from remesh.actors.worker.errands import Errands, FencedStorage, fenced_slot
from remesh.actors.worker.saver import Saver
from remesh.actors.worker.tools import TrainerParts
from remesh.data.digest import StepDigest
from remesh.orchestrator.control.words.records import (
    CheckpointState,
    FreshState,
    PeerState,
    StepRecord,
)
from remesh.orchestrator.control.words.recovery import slot_label
from remesh.orchestrator.job.faults_on_order import BEGIN, Moment
from remesh.orchestrator.worker import duties as do
from remesh.orchestrator.worker import heard
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.group import Dropping
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.holding.shard_state import Holding
from remesh.parallel.holding.slot_source import SlotSource
from remesh.parallel.holding.written_part import held_part, own_part
from remesh.parallel.plan.errors import Cancelled, CheckpointError, GroupError, SlotError
from remesh.parallel.plan.schedules.operations import Operation
from remesh.parallel.plan.step_result import RankPhase
from remesh.parallel.state.reading import read_into
from remesh.parallel.state.root_manifest import parse_name
from remesh.parallel.step.work import SampleSums, TokenBuffer, Work

OwnDuty = (
    do.BuildMesh
    | do.RestoreState
    | do.BeginSteps
    | do.Train
    | do.NoteStable
    | do.KeepSnapshot
    | do.CopyPart
    | do.WriteHeld
    | do.CloseGroups
)


class Hands:
    """Of the trainer thread, for one mesh after the other."""

    def __init__(self, parts: TrainerParts, fence: GenerationFence, saver: Saver) -> None:
        self._parts = parts
        self._fence = fence
        self._saver = saver
        self._feeding = Errands("feeding", fence)
        self._order: FormOrder | None = None
        self._mesh: Mesh | None = None
        self._left: Dropping | None = None

    def take(self, order: FormOrder) -> None:
        """The duties from now on are those of this order."""
        self._order = order

    def carry_out(self, duty: OwnDuty) -> heard.DutyEnded | None:
        """How it ended, None for what is done at once. Raises: whatever ends the worker."""
        try:
            return self._carry_out(duty)
        except Cancelled:
            return heard.CutShort(generation=self.order.generation)
        except GroupError as error:
            return heard.MeshBroken(
                generation=self.order.generation, error=str(error), waited_for=error.waited_for
            )

    def close(self) -> None:
        """Hold nothing of a mesh any more, of whose groups the rest goes by itself. Repeatable."""
        self._parts.stamps[Field.PHASE] = RankPhase.AT
        self._saver.release()
        self._parts.snapshots.leave()
        mesh, self._mesh = self._mesh, None
        if mesh:
            self._left = mesh.leave()

    @property
    def order(self) -> FormOrder:
        assert self._order, "there is no duty before an order"
        return self._order

    @property
    def mesh(self) -> Mesh:
        assert self._mesh, "there is no such duty without a mesh"
        return self._mesh

    def _carry_out(self, duty: OwnDuty) -> heard.DutyEnded | None:
        ended: heard.DutyEnded | None = None
        match duty:
            case do.BuildMesh():
                ended = self._form()
            case do.RestoreState():
                ended = self._restore()
            case do.BeginSteps():
                self._begin_steps()
            case do.Train():
                ended = self._step(duty)
            case do.NoteStable(step=step):
                self._parts.snapshots.stable(step)
            case do.KeepSnapshot(step=step):
                self._parts.snapshots.take(step)
            case do.CopyPart(step=step):
                ended = self._save(step)
            case do.WriteHeld():
                self._save_held(duty)
            case do.CloseGroups(generation=generation):
                self.close()
                at_step = self._parts.engine.at_step
                ended = heard.GroupsClosed(generation=generation, at_step=at_step)
            case _:
                assert_never(duty)
        return ended

    def _form(self) -> heard.MeshFormed:
        started_s = time.monotonic()
        order = self.order
        self._fire(order.from_step + 1, "form")
        self._saver.settle()
        if self._left:
            self._left.wait()
        self._mesh = self._parts.form_mesh(
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
                strict=self._parts.strict_groups,
            ),
            self._fence,
            order.rung.layout,
            order.rung.shards,
        )
        self._parts.stamps[Field.GENERATION] = order.generation
        return heard.MeshFormed(generation=order.generation, form_s=_since_s(started_s))

    def _restore(self) -> heard.StateRestored | heard.StateMissing:
        started_s = time.monotonic()
        order, engine = self.order, self._parts.engine
        self._fire(order.from_step + 1, "restore")
        holding = engine.holding()
        rung = order.rung
        engine.form(self.mesh, rung.leaves, rung.schedule, rung.cut.pipeline)
        missing = None
        match order.restore:
            case PeerState(step=step):
                if order.fills:
                    missing = self._share(holding, step)
            case CheckpointState(name=name):
                missing = self._read(holding, name)
            case FreshState():
                engine.reset()
            case _:
                assert_never(order.restore)
        return missing or heard.StateRestored(
            generation=order.generation,
            at_step=engine.at_step or 0,
            restore_s=_since_s(started_s),
        )

    def _share(self, holding: Holding | None, step: int) -> heard.StateMissing | None:
        """A slot that cannot be read because the fence has closed it is no bad slot.

        Raises: Cancelled, GroupError.
        """
        sources = [
            SlotSource(
                name=slot_label(told.slot),
                held=told.slot.held,
                open=partial(
                    fenced_slot, told, self._fence, self.order.generation, self._parts.job.timers
                ),
            )
            for told in self.order.slots
        ]
        try:
            self._parts.engine.share(holding, step, sources)
        except SlotError as error:
            self._fence.check(self.order.generation)
            return self._missing(error.slot, error)
        return None

    def _read(self, holding: Holding | None, name: str) -> heard.StateMissing | None:
        """Into memory of nobody else: what is held is there again if it comes to nothing.

        Raises: Cancelled.
        """
        generation, engine = self.order.generation, self._parts.engine
        ref = parse_name(name)
        assert ref, name
        storage = FencedStorage(self._parts.storage, self._fence, generation)
        state = engine.landing()
        try:
            Errands("reading", self._fence).run_last(
                generation, partial(read_into, storage, ref, dict(state.fragments()))
            )
        except Cancelled:
            engine.put_back(holding)
            raise
        except (CheckpointError, OSError) as error:
            engine.put_back(holding)
            return self._missing(name, error)
        engine.adopt(state, ref.step)
        return None

    def _missing(self, name: str, error: Exception) -> heard.StateMissing:
        return heard.StateMissing(generation=self.order.generation, name=name, error=str(error))

    def _begin_steps(self) -> None:
        order = self.order
        self._parts.snapshots.enter(order, self.mesh, self._parts.engine.shard_state)
        self._parts.course.enter(order.amendments, order.from_step)

    def _step(self, duty: do.Train) -> heard.Stepped:
        started_s = time.monotonic()
        order, step = self.order, duty.step
        self._fence.check(order.generation)
        self._parts.course.before(step)
        self._fire(step)
        work = Work(
            mesh=self.mesh,
            fence=self._fence,
            generation=order.generation,
            fill=partial(self._fill, step),
            write_digest=_write_digest,
            stamp=self._stamp,
            reach=partial(self._reach, step) if self._parts.faults.looks_at_operations else None,
            drain=duty.leave,
            save=duty.save,
            snapshots=partial(self._parts.snapshots.ballot, step),
        )
        did = self._parts.engine.step(step, work)
        now_s = time.monotonic()
        self._prepare_saves()
        record = StepRecord(step=step, did=did, step_s=now_s - started_s, ended_s=time.time())
        return heard.Stepped(generation=order.generation, record=record, now_s=now_s)

    def _fire(self, step: int, operation: str = BEGIN) -> None:
        order = self.order
        self._parts.faults.fire(
            Moment(
                generation=order.generation,
                step=step,
                rank=order.rank,
                is_last_rank=order.rank == order.rung.workers - 1,
                is_node_victim=order.is_victim,
                operation=operation,
            )
        )

    def _reach(self, step: int, operation: Operation) -> None:
        self._fire(step, type(operation).__name__.lower())

    def _fill(self, step: int, first: int, out: TokenBuffer) -> SampleSums:
        """What has to be read from a disk comes by an errand, into memory of its own: what is left
        behind may be read when another step uses `out`.
        """
        stream = self._parts.stream
        digest = stream.fill_at_once(step, first, out) if self._feeding.is_idle else None
        if digest is not None:
            return digest.high, digest.low, digest.count

        def fill() -> tuple[StepDigest, TokenBuffer]:
            own = out.copy()
            return stream.fill(step, first, own), own

        self._parts.stamps[Field.PHASE] = RankPhase.AT  # slow data is not a hung step
        digest, own = self._feeding.run(self.order.generation, fill)
        self._parts.stamps[Field.PHASE] = RankPhase.COMPUTING
        out[:] = own
        return digest.high, digest.low, digest.count

    def _save(self, step: int) -> heard.PartCopied:
        order, saver = self.order, self._saver
        self._fire(step, "save")
        self._prepare_saves()
        saver.save(self._fence, step=step, generation=order.generation)
        return heard.PartCopied(generation=order.generation)

    def _prepare_saves(self) -> None:
        """After the first step of a mesh, which is one that everybody waits for."""
        order, saver = self.order, self._saver
        if not saver.is_prepared:
            part = partial(own_part, self._parts.engine.shard_state, self.mesh)
            saver.prepare(part, rank=order.rank, num_writers=order.rung.workers)

    def _save_held(self, duty: do.WriteHeld) -> None:
        state = self._parts.engine.shard_state
        self._saver.save_held(
            held_part(state), state.held.place, step=duty.step, generation=duty.generation
        )

    def _stamp(self, step: int, operation: int, phase: int) -> None:
        stamps = self._parts.stamps
        stamps[Field.STEP], stamps[Field.OPERATION], stamps[Field.PHASE] = step, operation, phase


def _write_digest(sums: SampleSums) -> str:
    high, low, count = sums
    return StepDigest(high=high, low=low, count=count).hex()


def _since_s(started_s: float) -> float:
    """To the millisecond: the journal has it of every rank."""
    return round(time.monotonic() - started_s, 3)
