"""The state of a rank from mesh to mesh, and the steps that change it, by whatever schedule."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.holding.exchange import ROUND_BYTES
from remesh.parallel.holding.restore import share_state
from remesh.parallel.holding.shard_state import Holding, ShardState
from remesh.parallel.holding.slot_source import SlotSource
from remesh.parallel.optim.optimizer import StateMemory
from remesh.parallel.pages.state_room import StateRoom
from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.schedules.operations import Step
from remesh.parallel.plan.step_result import RankPhase, StepResult
from remesh.parallel.spec import EngineSpec
from remesh.parallel.state.fragments import Fragment
from remesh.parallel.step.assembly import Assembly
from remesh.parallel.step.interpreter import Interpreter
from remesh.parallel.step.rank_schedule import StepOrder
from remesh.parallel.step.work import Work


class Engine:
    """One rank's share of model and optimizer. `at_step` is None while it holds no whole state.

    `form` comes first, and again in every new mesh. The first state lies in the `room`, as far as
    that goes.
    """

    def __init__(
        self, spec: EngineSpec, device: torch.device | None = None, room: StateRoom | None = None
    ) -> None:
        self.spec = spec
        self.at_step: int | None = None
        self._memory = StateMemory(device=device or torch.device("cpu"))
        self._room = room
        self._state: ShardState | None = None
        self._assembly: Assembly | None = None
        self._order = StepOrder()

    def form(
        self,
        mesh: Mesh,
        lengths: Sequence[int] = (),
        schedule: str = "1f1b",
        pipeline: Pipeline | None = None,
    ) -> None:
        """Prepares for steps in this mesh. State that this rank holds in the mesh is kept.

        `lengths` are the leaves that each replica computes, as even as can be if there are none;
        `pipeline` says how layers lie on the pp ranks, one stage on each if it does not.
        Raises: LayoutError if the model cannot be cut, or its leaves not be dealt so; ScheduleError
            if there is no such schedule here.
        """
        self._order = StepOrder(schedule=schedule, lengths=lengths)
        cut = self.spec.cut(mesh.layout, mesh.shard.size, pipeline)
        held = cut.held_by(mesh.layout, mesh.world.rank)
        if self._state is None or self._state.held != held:
            self.at_step = None
            self._state = self._laid_out(held)
        self._assemble(mesh)

    def reset(self) -> None:
        """The state at step 0, drawn from the seed."""
        self.at_step = None
        self.shard_state.draw(self.spec.model, self.spec.seed)
        self.assembly.expire()
        self.at_step = 0

    def change(self, spec: EngineSpec) -> None:
        """From the next step on there are other rates, clipping, decay or z-loss; no other model.

        Every rank does so before the same step.
        """
        if spec != self.spec:
            self.spec, self._assembly = spec, None

    def step(self, step: int, work: Work) -> StepResult:
        """Turns the state at `step` - 1 into the state at `step`, together with the mesh.

        Raises: Cancelled or GroupError, with the state as it was; what `fill` raises.
        """
        assert self.at_step == step - 1, (self.at_step, step)
        if self._assembly is None or self._assembly.mesh is not work.mesh:
            self._assemble(work.mesh)
        try:
            return self._run(step, work)
        except BaseException:
            # An operation that was left behind may still write to what it was given.
            self._assembly = None
            raise

    @property
    def shard_state(self) -> ShardState:
        assert self._state, "form comes first"
        return self._state

    @property
    def assembly(self) -> Assembly:
        assert self._assembly, "form comes first"
        return self._assembly

    def fragments(self) -> list[tuple[Fragment, Tensor]]:
        """All that this rank owns of the state, as views: copy them before the next step."""
        return self.shard_state.fragments()

    def landing(self) -> ShardState:
        """Memory for what this rank holds in this mesh, to be filled and then adopted.

        What is held now stays as it is.
        """
        if self.at_step is None:
            return self.shard_state
        return ShardState(self.spec, self.shard_state.held, self._memory)

    def adopt(self, state: ShardState, at_step: int) -> None:
        """Takes over what `landing` gave, which is the state at this step now."""
        if state is not self._state:
            self._state = state
            self._assemble(self.assembly.mesh)
        self.loaded(at_step)

    def holding(self) -> Holding | None:
        """The state as it is held now, to be kept while another mesh is formed."""
        if self._state is None or self.at_step is None:
            return None
        return Holding(state=self._state, at_step=self.at_step)

    def put_back(self, holding: Holding | None) -> None:
        """Holds this state again, whatever has been formed since; None for no state.

        The memory of any other is given up: who was left behind may still write to it.
        """
        self._assembly = self._state = None
        self.at_step = None
        if holding is not None:
            self._state, self.at_step = holding.state, holding.at_step

    def share(
        self,
        holding: Holding | None,
        at_step: int,
        slots: Sequence[SlotSource] = (),
        *,
        round_bytes: int = ROUND_BYTES,
    ) -> None:
        """Brings every rank to `at_step` with what the holdings of all of them and `slots` make up.

        All ranks call it, after `form`, with what they held before, and each with the slots that
        it reads. If it fails, each is left with what it held of that step.

        Raises: Cancelled, GroupError; SlotError; ReshardError if all of it is not the whole state.
        """
        mesh, target = self.assembly.mesh, self.shard_state
        try:
            share_state(target, mesh, holding, at_step, slots, round_bytes=round_bytes)
        except BaseException:
            self.put_back(holding if holding and holding.at_step == at_step else None)
            raise
        self.loaded(at_step)

    def loaded(self, at_step: int) -> None:
        """Says that the fragments hold the state at this step now."""
        if self._assembly:
            self._assembly.expire()
        self.at_step = at_step

    def held_bytes(self) -> dict[str, int]:
        """Memory by use, in bytes: master weights, slots, working weights, gradients, spare.

        Between steps there are no gradients, but spare memory for those of the next one.
        """
        return {**self.shard_state.held_bytes(), **self.assembly.held_bytes()}

    def _laid_out(self, held: Held) -> ShardState:
        """In the room, the first time."""
        room, self._room = self._room, None
        if room is None:
            return ShardState(self.spec, held, self._memory)
        try:
            return ShardState(self.spec, held, replace(self._memory, room=room))
        finally:
            room.close()

    def _assemble(self, mesh: Mesh) -> None:
        self._assembly = Assembly(self.spec, self.shard_state, mesh, self._order)

    def _run(self, step: int, work: Work) -> StepResult:
        assembly = self.assembly
        interpreter = Interpreter(step, work, assembly)
        for number, operation in zip(assembly.standings, assembly.schedule, strict=True):
            work.fence.check(work.generation)
            updates = isinstance(operation, Step)
            work.stamp(step, number, RankPhase.UPDATING if updates else RankPhase.COMPUTING)
            if work.reach:
                work.reach(operation)
            interpreter.carry_out(operation)
            if updates:
                self.at_step = step
        work.stamp(step, assembly.standings[-1] + 1, RankPhase.AT)
        assert interpreter.result
        return interpreter.result
