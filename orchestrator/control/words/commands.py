"""What the controller decides. Commands are idempotent; each may be carried out twice."""

from dataclasses import dataclass

from remesh.orchestrator.control.words.records import Member, Restore
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.plan.rung import Rung
from remesh.parallel.state.root_manifest import ShardFile


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start a worker process under this name on this node; WorkerReady or WorkerLost follows."""

    worker: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWorker:
    """Kill this worker's process, frozen or not; WorkerLost follows."""

    worker: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseNode:
    """Leave nothing of the run on this node, so that it can go: its workers have ended."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Build the mesh of `generation`, restore, and train on from `from_step` + 1.

    `amendments` are all of the run: they say what each step trains with.
    """

    generation: int
    rung: Rung
    members: tuple[Member, ...]
    restore: Restore
    from_step: int
    amendments: Amendments = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Leave `generation` now: sockets are shut, the trainer parks, WorkerParked follows."""

    generation: int
    workers: tuple[str, ...]
    heard_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskVaults:
    """The vaults of these nodes are to tell what they hold; VaultTold follows from each.

    From then on a vault lets nobody write or reuse a slot of `generation`, or of an older one: what
    it has told is there until a newer generation is past it.
    """

    generation: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Leave `generation` at a step boundary that all its members agree on (through the vote)."""

    generation: int
    workers: tuple[str, ...]
    save: bool
    heard_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveHeld:
    """These workers, which are parked, hold the whole state at `step` together.

    Each writes all that it holds of it as files of that checkpoint; FilesSaved or SaveFailed
    follows from each.
    """

    generation: int
    step: int
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Put the manifest of these files; CheckpointCommitted or CommitFailed follows, unless the run
    goes back behind that step meanwhile.
    """

    generation: int
    step: int
    files: tuple[ShardFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """One sentence for the user and the journal: what was decided and why."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The run is over: end every worker and agent, and report this status.

    `user_error` says that the same command fails again unless the user changes something.
    """

    status: str
    reason: str
    user_error: bool = False

    @property
    def sentence(self) -> str:
        return f"{self.status}: {self.reason}"


Command = (
    StartWorker
    | EndWorker
    | ReleaseNode
    | Form
    | Fence
    | AskVaults
    | Drain
    | SaveHeld
    | Commit
    | Announce
    | End
)
