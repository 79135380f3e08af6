"""What a worker hears: from the controller, and from its own hands about what they were to do.

Each word names the generation that it is about; a word about an older one changes nothing.
"""

from dataclasses import dataclass

from remesh.orchestrator.control.words.records import StepRecord
from remesh.parallel.state.root_manifest import ShardFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """To be a rank of the mesh of `generation`, which goes on from the state at `from_step`."""

    generation: int
    rank: int
    size: int
    from_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The generation and all before it are over. Steps up to `heard_step` are known."""

    generation: int
    heard_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedToLeave:
    """At the next step boundary that all ranks agree on; with `save` after a checkpoint."""

    generation: int
    save: bool
    heard_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedToSave:
    """What it holds of the state at `step`, as a file of the checkpoint of `generation`."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshFormed:
    generation: int
    form_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRestored:
    generation: int
    at_step: int
    restore_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMissing:
    """The source `name` cannot be used: a checkpoint, a slot, or the peers if it is empty."""

    generation: int
    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """A step is done. `now_s` is a moment on a clock that only goes forward."""

    generation: int
    record: StepRecord
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCopied:
    """The state may change again: what is to be saved of it is in memory of its own."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshBroken:
    """A group could not be formed, or a collective on it failed; whom it waited for in vain."""

    generation: int
    error: str
    waited_for: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CutShort:
    """The fence went up amid what was being done, which is left undone."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsClosed:
    """Nothing of the mesh is left. `at_step` is the step whose state is held, None for none."""

    generation: int
    at_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritten:
    """`all_held`: by a parked worker, of all that it holds; else of its rank's part."""

    generation: int
    step: int
    files: tuple[ShardFile, ...]
    all_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLost:
    """What was to be saved of the state at `step` could not be written."""

    generation: int
    step: int
    error: str
    all_held: bool = False


SeatOrder = Called | Fenced | AskedToLeave | AskedToSave | FileWritten | FileLost
DutyEnded = (
    MeshFormed
    | StateRestored
    | StateMissing
    | Stepped
    | PartCopied
    | MeshBroken
    | CutShort
    | GroupsClosed
)
Heard = SeatOrder | DutyEnded
