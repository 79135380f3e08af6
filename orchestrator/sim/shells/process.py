"""A simulated worker process: the machine of a worker, whose duties take their time, or never end.

It may freeze or die amid any of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, assert_never

from remesh.orchestrator.control.words.commands import Drain, Fence, Form, SaveHeld
from remesh.orchestrator.control.words.records import CheckpointState, FreshState, PeerState
from remesh.orchestrator.control.words.recovery import slot_label
from remesh.orchestrator.sim.shells import freezing
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.rank_snapshots import SimSnapshots
from remesh.orchestrator.sim.shells.world import World, rate_at, record_of, value_after
from remesh.orchestrator.vault.snapshot_pace import Pace
from remesh.orchestrator.worker import duties as do
from remesh.orchestrator.worker import heard
from remesh.orchestrator.worker.duties import Duty
from remesh.orchestrator.worker.heard import Heard
from remesh.orchestrator.worker.reports import Reports
from remesh.orchestrator.worker.seat import Seat, Stance
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.step_result import StepResult
from remesh.parallel.state.root_manifest import ShardFile

WAITS_FOR_OTHERS = frozenset({Stance.FORMING, Stance.RESTORING, Stance.TRAINING})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimVote:
    """What the members of a mesh agree on with a step; `stable` is None without vaults."""

    leave: bool
    save: bool
    snapshot: bool
    stable: int | None

    def agreed(self, did: StepResult) -> StepResult:
        return replace(
            did,
            drain=self.leave,
            save=self.save,
            snapshot=self.snapshot,
            stable_step=self.stable,
        )


class Coupling(Protocol):
    """The mesh as a process sees it: it comes, is ready, leaves, dies, and asks what there is."""

    form: Form

    def part_of(self, process: "SimProcess") -> Held: ...
    def value_at(self, step: int) -> int: ...
    def snapshots_of(self, process: "SimProcess") -> SimSnapshots | None: ...
    def fills(self) -> bool: ...
    def share(self, process: "SimProcess") -> None: ...
    def arrive(self, process: "SimProcess") -> None: ...
    def ready(self, process: "SimProcess") -> None: ...
    def left(self, process: "SimProcess") -> None: ...
    def died(self, process: "SimProcess") -> None: ...
    def resume(self) -> None: ...


@dataclass(slots=True, eq=False)
class SimProcess:
    """`value` stands for the parameters at `at_step`, of which the process has the part `held`.

    `stalled` is what a frozen process missed. `errands` counts the duties that take a while: an
    answer to one of them that was cut short is known by it; `updating`: nothing but death keeps the
    step under way from being done. `wish` is what goes into the vote of that step. `writes` are on
    their way to storage, one after the other, and what `copies` waits for them.
    """

    world: World
    name: str
    node: str
    alive: bool = True
    frozen: bool = False
    mesh: "Coupling | None" = None
    called: dict[int, "Coupling"] = field(default_factory=dict)
    rank: int = 0
    at_step: int | None = None
    value: int = 0
    held: Held = field(default_factory=Held)
    errands: int = 0
    updating: bool = False
    wish: do.Train | None = None
    writes: list[do.CopyPart | do.WriteHeld] = field(default_factory=list)
    copies: tuple[int, do.CopyPart] | None = None
    snapshots: SimSnapshots | None = None
    pace: Pace = field(init=False)
    stalled: list[Callable[[], None]] = field(default_factory=list)
    seat: Seat = field(init=False)

    def __post_init__(self) -> None:
        settings = self.world.settings
        self.pace = Pace(settings.snapshot_every)
        self.seat = Seat(
            worker=self.name,
            last_step=settings.steps,
            save_every=settings.every,
            reports=Reports(remember_s=2 * self.world.timers.lease_s),
        )

    @property
    def generation(self) -> int:
        return self.seat.generation

    @property
    def stance(self) -> Stance:
        return self.seat.stance

    def soon(self, delay_s: float, action: Callable[[], None]) -> None:
        """Acts after a while, later if frozen by then, never if dead."""
        self.world.agenda.after(delay_s, lambda: self.act(action))

    def act(self, action: Callable[[], None]) -> None:
        freezing.act(self, action)

    def die(self) -> None:
        if self.alive:
            self.alive = False
            if self.mesh is not None:
                self.mesh.died(self)
            if self.snapshots is not None:
                self.snapshots.died()

    def in_mesh(self, generation: int) -> bool:
        """Whether it is alive and uses the groups of this generation, or may."""
        there = self.mesh is not None and self.stance is not Stance.PARKED
        return there and self.alive and self.generation == generation

    def receive(
        self, command: Form | Fence | Drain | SaveHeld, mesh: "Coupling | None" = None
    ) -> None:
        match command:
            case Form():
                if mesh is not None:
                    self._call(command, mesh)
            case Fence():
                self.hear(
                    heard.Fenced(generation=command.generation, heard_step=command.heard_step)
                )
            case Drain():
                self.hear(
                    heard.AskedToLeave(
                        generation=command.generation,
                        save=command.save,
                        heard_step=command.heard_step,
                    )
                )
            case SaveHeld():
                self.hear(heard.AskedToSave(generation=command.generation, step=command.step))
            case _:
                assert_never(command)

    def hear(self, word: Heard) -> None:
        for duty in self.seat.handle(word):
            self._carry_out(duty)

    def formed(self, form: Form) -> None:
        if self.in_mesh(form.generation) and self.stance is Stance.FORMING:
            self.hear(heard.MeshFormed(generation=form.generation, form_s=0.005))

    def update(self, step: int, step_s: float, vote: SimVote) -> None:
        """The step's vote has passed: nothing but death keeps the update from being finished."""
        if self.at_step != step - 1 or self.stance is not Stance.TRAINING:
            raise InvariantError(f"{self.name} at {self.at_step} ({self.stance}) updates {step}")
        self.updating = True
        self.soon(self.world.between(0.0, 0.015), lambda: self._updated(step, step_s, vote))

    def exchange(self, mesh: "Coupling", value: int) -> None:
        """All have come with what they hold: it has its part soon."""
        self.soon(self.world.between(0.0, 0.009), partial(self._filled, mesh, self.errands, value))

    def broken(self, generation: int, error: str, waited_for: tuple[int, ...] = ()) -> None:
        """A collective fails, if it waits in one: others that it waits for have left."""
        waits = self.stance in WAITS_FOR_OTHERS and not self.updating
        if self.in_mesh(generation) and waits:
            self.errands += 1
            self.hear(heard.MeshBroken(generation=generation, error=error, waited_for=waited_for))

    def thaw(self) -> None:
        freezing.thaw(self)

    def _call(self, form: Form, mesh: "Coupling") -> None:
        self.called[form.generation] = mesh
        self.hear(
            heard.Called(
                generation=form.generation,
                rank=_rank(form, self.name),
                size=len(form.members),
                from_step=form.from_step,
            )
        )

    def _carry_out(self, duty: Duty) -> None:
        match duty:
            case do.TellIt(event=event):
                self.world.post(self.node, event)
            case do.RaiseFence():
                self._free_soon()
            case do.NoteStable(step=step) if self.snapshots is not None:
                self.snapshots.voted(step)
            case do.KeepSnapshot(step=step) if self.snapshots is not None:
                self.snapshots.take(step, self.value)
            case do.NoteStable() | do.KeepSnapshot():
                pass
            case do.BeginSteps():
                assert self.mesh is not None
                self.snapshots = self.mesh.snapshots_of(self)
            case do.WriteHeld():
                self._write(duty)
            case _:
                self._begin(duty)

    def _begin(self, duty: "_Lasting") -> None:
        """What takes a while: answered once, by what becomes of it or by the fence."""
        self.errands += 1
        match duty:
            case do.BuildMesh(generation=generation):
                self.mesh = self.called[generation]
                self.called = {g: mesh for g, mesh in self.called.items() if g > generation}
                self.rank = _rank(self.mesh.form, self.name)
                self.mesh.arrive(self)
            case do.RestoreState():
                self._restore_soon()
            case do.Train():
                assert self.mesh is not None
                self.wish = duty
                self.mesh.ready(self)
            case do.CopyPart():
                self.copies = (self.errands, duty)
                self._copy_part()
            case do.CloseGroups():
                self._leave(duty.generation)
            case _:
                assert_never(duty)

    def _free_soon(self) -> None:
        """Whatever it waits for is given up; but an update is finished."""
        self.soon(self.world.between(0.001, 0.01), partial(self._free, self.errands))

    def _free(self, errand: int) -> None:
        if errand == self.errands and not self.updating:
            self.errands += 1
            self.hear(heard.CutShort(generation=self.generation))

    def _leave(self, generation: int) -> None:
        mesh, self.mesh = self.mesh, None
        assert mesh is not None
        if self.snapshots is not None:
            self.snapshots.leave()
        self.snapshots, self.wish = None, None
        mesh.left(self)
        self.hear(heard.GroupsClosed(generation=generation, at_step=self.at_step))

    def _restore_soon(self) -> None:
        assert self.mesh is not None
        restore = partial(self._restore, self.mesh, self.errands)
        quick_s = self.world.between(0.005, 0.05)
        if isinstance(self.mesh.form.restore, CheckpointState):
            self.world.storage.run(self.soon, quick_s, restore)
        else:
            self.soon(quick_s, restore)

    def _restore(self, mesh: "Coupling", errand: int) -> None:
        if errand != self.errands:
            return
        form = mesh.form
        match form.restore:
            case FreshState():
                self.at_step, self.value = 0, 0
            case PeerState() as peers:
                if mesh.fills():
                    self._share(mesh, peers)
                    return
                mesh.value_at(peers.step)
            case CheckpointState(name=name):
                saved = self.world.committed[name]
                if not saved.readable:
                    self._cannot_restore(name)
                    return
                self.at_step, self.value = saved.step, saved.value
            case _:
                assert_never(form.restore)
        self._restored(mesh)

    def _restored(self, mesh: "Coupling") -> None:
        form = mesh.form
        if self.at_step != form.from_step:
            raise InvariantError(f"{self.name} restored {self.at_step}, not {form.from_step}")
        self.held = mesh.part_of(self)
        self.hear(
            heard.StateRestored(generation=form.generation, at_step=form.from_step, restore_s=0.01)
        )

    def _share(self, mesh: "Coupling", peers: PeerState) -> None:
        """Goes into the exchange of state, unless it cannot read what it is to bring along."""
        has_part = self.at_step == peers.step and self.held == mesh.part_of(self)
        if self.world.copies_fail and not has_part:
            self._cannot_restore("")
            return
        for slot in () if has_part else peers.slots:
            if self.world.vaults[slot.vault].find(slot) is None:
                self._cannot_restore(slot_label(slot))
                return
        mesh.share(self)

    def _filled(self, mesh: "Coupling", errand: int, value: int) -> None:
        if errand == self.errands:
            self.at_step, self.value = mesh.form.from_step, value
            self._restored(mesh)

    def _cannot_restore(self, name: str) -> None:
        self.hear(heard.StateMissing(generation=self.generation, name=name, error="hash differs"))

    def _updated(self, step: int, step_s: float, vote: SimVote) -> None:
        assert self.mesh is not None
        self.updating = False
        self.at_step, self.value = step, value_after(self.value, step)
        now_s = self.world.agenda.now_s
        record = record_of(step, rate_at(self.mesh.form.amendments, step), step_s, now_s)
        record = replace(record, did=vote.agreed(record.did))
        self.hear(heard.Stepped(generation=self.generation, record=record, now_s=now_s))

    def _copy_part(self) -> None:
        """Into the memory of the write before, once that is done; the fence cuts the wait short."""
        if self.copies is None or self.writes:
            return
        (errand, duty), self.copies = self.copies, None
        if errand == self.errands:
            self._write(duty)
            self.hear(heard.PartCopied(generation=duty.generation))

    def _write(self, duty: do.CopyPart | do.WriteHeld) -> None:
        """Goes on while training does; a mesh that was left does not stop it."""
        self.writes.append(duty)
        if len(self.writes) == 1:
            self._write_next()

    def _write_next(self) -> None:
        self.world.storage.run(self.soon, self.world.between(0.005, 0.8), self._written)

    def _written(self) -> None:
        duty = self.writes.pop(0)
        all_held = isinstance(duty, do.WriteHeld)
        word: Heard = heard.FileLost(
            generation=duty.generation, step=duty.step, error="disk is full", all_held=all_held
        )
        if not self.world.storage.is_full:
            self.world.written.add((duty.generation, duty.step, self.name))
            word = heard.FileWritten(
                generation=duty.generation,
                step=duty.step,
                files=(ShardFile(name=f"{self.name}.safetensors", size_bytes=1, digest="0"),),
                all_held=all_held,
            )
        self.hear(word)
        if self.writes:
            self._write_next()
        self._copy_part()


_Lasting = do.BuildMesh | do.RestoreState | do.Train | do.CopyPart | do.CloseGroups


def _rank(form: Form, worker: str) -> int:
    return next(member.rank for member in form.members if member.worker == worker)
