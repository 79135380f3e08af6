"""What the controller is told. Each event is a value that the journal can hold as one JSON line."""

from dataclasses import dataclass

from remesh.orchestrator.control.words.records import StepRecord, VaultSlot
from remesh.orchestrator.job.amendments import Amendments
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.plan.wish import LayoutWish
from remesh.parallel.state.root_manifest import ShardFile


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The controller begins to act; nodes may have joined before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRestarted:
    """The controller died and is back, in the state that its journal told.

    `down_s` is the time since the newest event before this one, of any kind.
    """

    down_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoodStill:
    """The controller, or its whole host, did not run for so long: nobody else's silence counts."""

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node offers room for `slots` workers. Repeated offers of a known node are ignored.

    `host` is what stays the same when a machine comes back under another name: its address.
    """

    node: str
    slots: int
    domain: str = ""
    head: bool = False
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDraining:
    """A node is about to leave, at `deadline_s` if that is known: a moment, not a duration."""

    node: str
    cause: str
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilent:
    """A node's agent has missed its beats for one patience: a suspect, not yet lost."""

    node: str
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefused:
    """The process of a node's agent is not there, says the kernel of its host: the connection to it
    broke at `broken_s`, and a new one is refused. Told where a mesh that is left waits for it.
    """

    node: str
    broken_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node is dead for good. `died_at_s` is set where the moment of death is known."""

    node: str
    cause: str
    died_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultUp:
    """The vault of a node is there, empty; others reach it at `address`, "ip:port"."""

    node: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultLost:
    """The vault of a node is dead, and with it all that it held."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultTold:
    """The sealed slots of a vault, in answer to AskVaults of `generation`."""

    node: str
    generation: int
    slots: tuple[VaultSlot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsPaused:
    """A rank takes no snapshots for a while, and so none does; it tries again by itself."""

    worker: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """A worker's process is warm and can join the next generation.

    `device` is the index of the accelerator that it was given, None for none.
    """

    worker: str
    node: str
    pid: int
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker's process is dead or was given up. `died_at_s` as in NodeLost.

    `traceback` is the end of its last words, empty for one that could say none.
    """

    worker: str
    cause: str
    died_at_s: float | None = None
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFrozen:
    """A worker's process lives and gives no sign: it must be killed before it counts as lost."""

    worker: str
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStuck:
    """A worker's process lives and beats, and its trainer has made no progress for `silent_s`.

    It stands in `phase` before an operation of the step after `step`; `operation` says how far that
    is, as a number that can be compared with those of others. Told again if it goes on and stands
    still once more. `at_rest`: told early, of a step that takes far longer than usual, since its
    process uses no processor.
    """

    worker: str
    generation: int
    step: int
    operation: int
    phase: str
    silent_s: float
    at_rest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBroken:
    """A group failed on this worker; its groups are closed already.

    `waited_for` are the ranks that it waited for in vain, or could not reach, where it knows them:
    not one that closed its end, since those who leave a broken mesh do that too.
    """

    worker: str
    generation: int
    error: str
    waited_for: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParked:
    """A trainer thread stands still outside of `generation`: fenced, or drained at a boundary.

    `at_step` is the step whose state it holds its part of, None if it holds none, and `held_in` the
    generation in which it got that part: not this one, if it was fenced before it restored.
    `records` are the steps that the controller may not have heard of yet.
    """

    worker: str
    generation: int
    at_step: int | None
    drained: bool
    held_in: int
    records: tuple[StepRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFormed:
    """The groups of `generation` stand on this worker."""

    worker: str
    generation: int
    form_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRestored:
    """The worker holds the state that the generation starts from, and trains on."""

    worker: str
    generation: int
    at_step: int
    restore_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFailed:
    """State could not be restored: a corrupt or missing checkpoint.

    `name` is the checkpoint's, or `slot_label` of the slot of a vault; empty for peers.
    """

    worker: str
    generation: int
    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsDone:
    """The finished steps since the last report, oldest first; sent by rank 0 once a second."""

    worker: str
    generation: int
    records: tuple[StepRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSaved:
    """A rank's files of the checkpoint at `step` are on storage, not yet committed."""

    worker: str
    generation: int
    step: int
    files: tuple[ShardFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """A rank could not write its files of the checkpoint at `step`."""

    worker: str
    generation: int
    step: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """The manifest of the checkpoint `name` is on storage."""

    generation: int
    step: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFailed:
    """The manifest could not be put: full disk, or another controller has claimed the run."""

    generation: int
    step: int
    error: str
    fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerErred:
    """The job failed on this worker: its data, its files, its disk; its process ends.

    `certain`: it would fail so on any node, and every further try is in vain. `generation` is 0 for
    a worker that was not in any yet. `traceback` as in WorkerLost. `user_error` is what End says.
    """

    worker: str
    generation: int
    error: str
    user_error: bool
    certain: bool = False
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Somebody wants the run to end saved: a user, a lease, a node that is taken away.

    `wish` names the wish, the reason where it has no name: the same one said twice is one, and no
    other drops a save under way. Only `at_once` ends the run now, with what is saved already.
    `deadline_s` is the moment by which the run has to be over, if there is one.
    """

    reason: str
    wish: str = ""
    at_once: bool = False
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequested:
    """Somebody wants the run to use so many nodes, as far as there are any."""

    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderChanged:
    """From the next step boundary on the run has other meshes to choose from. The leaves stay.

    `layout` is what somebody has asked for, None for the meshes of the job.
    """

    ladder: Ladder
    reason: str
    layout: LayoutWish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended:
    """Somebody wants the run to train with other values, each from its step on or a later one."""

    changes: Amendments


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The deadline that the controller asked for has passed."""


Event = (
    RunStarted
    | ControllerRestarted
    | StoodStill
    | NodeJoined
    | NodeDraining
    | NodeSilent
    | NodeRefused
    | NodeLost
    | VaultUp
    | VaultLost
    | VaultTold
    | SnapshotsPaused
    | WorkerReady
    | WorkerLost
    | WorkerFrozen
    | WorkerStuck
    | GroupBroken
    | WorkerParked
    | WorkerFormed
    | WorkerRestored
    | RestoreFailed
    | StepsDone
    | FilesSaved
    | SaveFailed
    | CheckpointCommitted
    | CommitFailed
    | WorkerErred
    | StopRequested
    | ScaleRequested
    | LadderChanged
    | Amended
    | Tick
)
