"""A simulated worker process: parks, forms, restores, trains, saves, and may freeze or die."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, assert_never

from remesh.orchestrator.control.words.commands import Drain, Fence, Form, SaveHeld
from remesh.orchestrator.control.words.events import (
    FilesSaved,
    GroupBroken,
    RestoreFailed,
    StepsDone,
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
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.snapshots import SimSnapshots
from remesh.orchestrator.sim.shells.world import World, rate_at, record_of, value_after
from remesh.parallel.plan.cut import Held
from remesh.parallel.state.root_manifest import ShardFile

REPORT_S = 1.0


class Doing(StrEnum):
    PARKED = "parked"
    FORMING = "forming"
    RESTORING = "restoring"
    TRAINING = "training"
    UPDATING = "updating"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimVote:
    """What the members of a mesh agree on with a step; `stable` is -1 where nothing is."""

    leave: bool
    save: bool
    snapshot: bool
    stable: int


class Coupling(Protocol):
    """The mesh as a process sees it: it comes, is ready, leaves, dies, and asks what there is."""

    def part_of(self, process: "SimProcess") -> Held: ...
    def value_at(self, step: int) -> int: ...
    def snapshots_of(self, process: "SimProcess") -> SimSnapshots | None: ...
    def has_sources(self) -> bool: ...
    def arrive(self, process: "SimProcess") -> None: ...
    def ready(self, process: "SimProcess") -> None: ...
    def left(self, process: "SimProcess") -> None: ...
    def died(self, process: "SimProcess") -> None: ...
    def resume(self) -> None: ...


ACTIVE = frozenset(Doing) - {Doing.PARKED}


@dataclass(slots=True, eq=False)
class SimProcess:
    """`value` stands for the parameters at `at_step`, of which the process has the part `held`
    since the generation `held_in`. `stalled` is what a frozen process missed.
    """

    world: World
    name: str
    node: str
    alive: bool = True
    frozen: bool = False
    doing: Doing = Doing.PARKED
    mesh: "Coupling | None" = None
    generation: int = 0
    rank: int = 0
    fenced: int = 0
    at_step: int | None = None
    value: int = 0
    held: Held = field(default_factory=Held)
    held_in: int = 0
    records: list[StepRecord] = field(default_factory=list)
    reported: int = 0
    heard_step: int = 0
    reporting: bool = False
    drain: Drain | None = None
    amendments: Amendments = ()
    snapshots: SimSnapshots | None = None
    stalled: list[Callable[[], None]] = field(default_factory=list)

    def soon(self, delay_s: float, action: Callable[[], None]) -> None:
        """Acts after a while, later if frozen by then, never if dead."""
        self.world.agenda.after(delay_s, lambda: self.act(action))

    def act(self, action: Callable[[], None]) -> None:
        if self.alive and self.frozen:
            self.stalled.append(action)
        elif self.alive:
            action()

    def die(self) -> None:
        if self.alive:
            self.alive = False
            if self.mesh is not None:
                self.mesh.died(self)

    def in_mesh(self, generation: int) -> bool:
        return self.alive and self.generation == generation and self.doing in ACTIVE

    def receive(
        self, command: Form | Fence | Drain | SaveHeld, mesh: "Coupling | None" = None
    ) -> None:
        match command:
            case Form():
                if mesh is not None and command.generation > max(self.fenced, self.generation):
                    self._form(command, mesh)
            case Fence():
                self._fence(command)
            case Drain():
                if self.generation == command.generation:
                    self.drain, self.heard_step = command, command.heard_step
            case SaveHeld() if self.doing is Doing.PARKED and self.at_step == command.step:
                self._write(command.generation, command.step)
            case SaveHeld():
                pass
            case _:
                assert_never(command)

    def formed(self, form: Form) -> None:
        if not (self.in_mesh(form.generation) and self.doing is Doing.FORMING):
            return
        self.doing = Doing.RESTORING
        event = WorkerFormed(worker=self.name, generation=self.generation, form_s=0.005)
        self.world.post(self.node, event)
        quick_s = self.world.between(0.005, 0.05)
        if isinstance(form.restore, CheckpointState):
            self.world.storage.run(self.soon, quick_s, lambda: self._restore(form))
        else:
            self.soon(quick_s, lambda: self._restore(form))

    def update(self, step: int, step_s: float, vote: SimVote) -> None:
        """The step's vote has passed: nothing but death keeps the update from being finished."""
        if self.at_step != step - 1 or self.doing is not Doing.TRAINING:
            raise InvariantError(f"{self.name} at {self.at_step} ({self.doing}) updates {step}")
        self.doing = Doing.UPDATING
        delay_s = self.world.between(0.0, 0.015)
        self.soon(delay_s, lambda: self._updated(step, step_s, vote))

    def broken(self, generation: int, error: str) -> None:
        """A collective failed: the groups are closed, the controller hears, the trainer parks."""
        if not self.in_mesh(generation) or self.doing is Doing.UPDATING:
            return
        event = GroupBroken(worker=self.name, generation=generation, error=error)
        self.world.post(self.node, event)
        self._park(drained=False)

    def thaw(self) -> None:
        self.frozen = False
        missed, self.stalled = self.stalled, []
        for action in missed:
            self.act(action)

    def _form(self, form: Form, mesh: "Coupling") -> None:
        if self.doing is not Doing.PARKED:
            raise InvariantError(f"{self.name} is to form {form.generation} while {self.doing}")
        self.doing, self.mesh, self.generation = Doing.FORMING, mesh, form.generation
        self.amendments = form.amendments
        self.rank = next(m.rank for m in form.members if m.worker == self.name)
        self.records, self.reported, self.heard_step, self.drain = [], 0, 0, None
        mesh.arrive(self)

    def _restore(self, form: Form) -> None:
        if not (self.in_mesh(form.generation) and self.doing is Doing.RESTORING):
            return
        mesh = self.mesh
        assert mesh is not None
        match form.restore:
            case FreshState():
                self.at_step, self.value = 0, 0
            case PeerState() as peers:
                if not self._copy(form, mesh, peers):
                    return
            case CheckpointState(name=name):
                saved = self.world.committed[name]
                if not saved.readable:
                    self._cannot_restore(form, name)
                    return
                self.at_step, self.value = saved.step, saved.value
            case _:
                assert_never(form.restore)
        if self.at_step != form.from_step:
            raise InvariantError(f"{self.name} restored {self.at_step}, not {form.from_step}")
        self.held, self.held_in = mesh.part_of(self), form.generation
        self.snapshots = mesh.snapshots_of(self)
        event = WorkerRestored(
            worker=self.name, generation=self.generation, at_step=form.from_step, restore_s=0.01
        )
        self.world.post(self.node, event)
        self.doing = Doing.TRAINING
        if form.from_step >= self.world.settings.steps:
            self._save(leave=True)
        else:
            mesh.ready(self)

    def _copy(self, form: Form, mesh: "Coupling", peers: PeerState) -> bool:
        """Whether the part could be had: those who have parts of it may be gone by now."""
        step = peers.step
        value = mesh.value_at(step)
        wanted = mesh.part_of(self)
        if self.at_step == step and self.held == wanted:
            return True
        if self.world.copies_fail:
            self._cannot_restore(form, "")
            return False
        for slot in peers.slots:
            if self.world.vaults[slot.vault].find(slot) is None:
                self._cannot_restore(form, slot_label(slot))
                return False
        if not mesh.has_sources():
            self.broken(self.generation, "a source of the state is gone")
            return False
        self.at_step, self.value = step, value
        return True

    def _cannot_restore(self, form: Form, name: str) -> None:
        event = RestoreFailed(
            worker=self.name, generation=form.generation, name=name, error="hash differs"
        )
        self.world.post(self.node, event)
        self._park(drained=False)

    def _updated(self, step: int, step_s: float, vote: SimVote) -> None:
        self.at_step, self.value = step, value_after(self.value, step)
        lr = rate_at(self.amendments, step)
        self.records.append(record_of(step, lr, step_s, self.world.agenda.now_s))
        self._report_later()
        if self.snapshots is not None:
            self.snapshots.note_stable(vote.stable)
            if vote.snapshot:
                self.snapshots.take(step, self.value)
        settings = self.world.settings
        last = step == settings.steps
        if self.fenced >= self.generation:
            self._park(drained=False)
        elif vote.save or last or step % settings.every == 0:
            self._save(leave=vote.leave or last)
        else:
            self._go_on(leave=vote.leave)

    def _save(self, *, leave: bool) -> None:
        """Writes a copy while training goes on; a mesh that was left does not stop it."""
        assert self.at_step is not None
        self._write(self.generation, self.at_step)
        self._go_on(leave=leave)

    def _write(self, generation: int, step: int) -> None:
        def written() -> None:
            self.world.written.add((generation, step, self.name))
            files = (ShardFile(name=f"{self.name}.safetensors", size_bytes=1, digest="0"),)
            event = FilesSaved(worker=self.name, generation=generation, step=step, files=files)
            self.world.post(self.node, event)

        self.world.storage.run(self.soon, self.world.between(0.005, 0.8), written)

    def _go_on(self, *, leave: bool) -> None:
        """Into the next step, or out of the mesh at a boundary that all members agreed on."""
        if leave:
            self._report_now()
            self._park(drained=True)
        else:
            self._next_step()

    def _next_step(self) -> None:
        self.doing = Doing.TRAINING
        assert self.mesh is not None
        self.mesh.ready(self)

    def _fence(self, fence: Fence) -> None:
        self.fenced = max(self.fenced, fence.generation)
        if fence.generation == self.generation:
            self.heard_step = max(self.heard_step, fence.heard_step)
        if self.in_mesh(fence.generation):
            if self.doing is not Doing.UPDATING:
                self.soon(self.world.between(0.001, 0.01), self._park_if_fenced)
        elif self.generation <= fence.generation and self.doing is Doing.PARKED:
            self._say_parked(fence.generation, drained=False)

    def _park_if_fenced(self) -> None:
        if self.doing not in (Doing.PARKED, Doing.UPDATING) and self.fenced >= self.generation:
            self._park(drained=False)

    def _park(self, *, drained: bool) -> None:
        mesh = self.mesh
        self.doing, self.mesh = Doing.PARKED, None
        self._say_parked(self.generation, drained=drained)
        if mesh is not None and not drained:
            mesh.left(self)

    def _say_parked(self, generation: int, *, drained: bool) -> None:
        own = generation == self.generation
        event = WorkerParked(
            worker=self.name,
            generation=generation,
            at_step=self.at_step,
            drained=drained,
            held_in=self.held_in,
            records=tuple(r for r in self.records if own and r.step > self.heard_step),
        )
        self.world.post(self.node, event)

    def _report_later(self) -> None:
        if self.rank != 0 or self.reporting:
            return
        self.reporting = True
        self.soon(self.world.between(0.1, REPORT_S), self._report)

    def _report(self) -> None:
        self.reporting = False
        self._report_now()

    def _report_now(self) -> None:
        if self.rank != 0:
            return
        news = tuple(self.records[self.reported :])
        self.reported = len(self.records)
        if news:
            event = StepsDone(worker=self.name, generation=self.generation, records=news)
            self.world.post(self.node, event)
