"""What a trainer works with, as far as it uses it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from remesh.actors.node.stamps import Field
from remesh.actors.orders import FormOrder, VaultOrder
from remesh.data.digest import StepDigest
from remesh.orchestrator.control.words.events import Event
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.job.faults_on_order import Moment
from remesh.orchestrator.job.job import Job
from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.groups.rendezvous import Rendezvous
from remesh.parallel.holding.shard_state import Holding, ShardState
from remesh.parallel.holding.slot_source import SlotSource
from remesh.parallel.pages.state_room import StateRoom
from remesh.parallel.plan.layout import Layout
from remesh.parallel.plan.pipeline import Pipeline
from remesh.parallel.plan.step_result import StepResult
from remesh.parallel.state.storage import Storage
from remesh.parallel.step.work import TokenBuffer, Work

FormMesh = Callable[[Rendezvous, GenerationFence, Layout, int], Mesh]


class Computes(Protocol):
    """The engine."""

    at_step: int | None

    @property
    def shard_state(self) -> ShardState: ...
    def form(
        self, mesh: Mesh, lengths: Sequence[int], schedule: str, pipeline: Pipeline
    ) -> None: ...
    def reset(self) -> None: ...
    def holding(self) -> Holding | None: ...
    def put_back(self, holding: Holding | None) -> None: ...
    def share(
        self, holding: Holding | None, at_step: int, slots: Sequence[SlotSource] = ()
    ) -> None: ...
    def landing(self) -> ShardState: ...
    def adopt(self, state: ShardState, at_step: int) -> None: ...
    def step(self, step: int, work: Work) -> StepResult: ...


class Feeds(Protocol):
    """The stream of samples."""

    def fill(self, step: int, first: int, out: TokenBuffer) -> StepDigest: ...
    def fill_at_once(self, step: int, first: int, out: TokenBuffer) -> StepDigest | None: ...


class Turns(Protocol):
    """The course: what holds from which step on."""

    def enter(self, amendments: Amendments, from_step: int) -> None: ...
    def before(self, step: int) -> None: ...


class Keeps(Protocol):
    """The taker of snapshots."""

    def enter(self, order: FormOrder, mesh: Mesh, state: ShardState) -> None: ...
    def move(self, generation: int, vaults: VaultOrder) -> None: ...
    def leave(self) -> None: ...
    def ballot(self, step: int) -> tuple[int | None, bool]: ...
    def take(self, step: int) -> None: ...
    def stable(self, step: int) -> None: ...


class Stamped(Protocol):
    """Where it stands, for its node's agent to see."""

    def __setitem__(self, field: Field, value: int) -> None: ...


class Strikes(Protocol):
    """Faults on order."""

    @property
    def looks_at_operations(self) -> bool: ...
    def fire(self, at: Moment) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerParts:
    """Each is ready for use. `start` is the claim of this start of the run. The engine's `room` is
    laid out while the worker waits for its first mesh.

    `strict_groups` is whether groups on CPUs are to have the manners of a device's.
    """

    worker: str
    node_ip: str
    start: int
    job: Job
    engine: Computes
    stream: Feeds
    course: Turns
    storage: Storage
    stamps: Stamped
    faults: Strikes
    snapshots: Keeps
    post: Callable[[Event], object]
    form_mesh: FormMesh = Mesh.form
    strict_groups: bool = False
    room: StateRoom | None = None
