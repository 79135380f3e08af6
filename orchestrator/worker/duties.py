"""What a worker wants done. One duty at a time takes a while, and ends with one word of `heard.py`.

Those are `BuildMesh`, `RestoreState`, `Train`, `CopyPart` and `CloseGroups`, and each is the last
of what one word leads to. The others are done at once, in the order in which they are given.
"""

from dataclasses import dataclass

from remesh.orchestrator.control.words.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildMesh:
    """MeshFormed, MeshBroken or CutShort follows."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreState:
    """StateRestored, StateMissing, MeshBroken or CutShort follows.

    What is cut short leaves the whole of what was held before, or nothing that counts.
    """

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginSteps:
    """The state is there, and steps follow: slots are asked for at the vault."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Stepped, MeshBroken or CutShort follows. `leave` and `save` go into the step's vote."""

    generation: int
    step: int
    leave: bool
    save: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteStable:
    """All ranks have a safe snapshot of this step."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepSnapshot:
    """All ranks are ready for one of this step."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPart:
    """PartCopied or CutShort follows, and FileWritten or FileLost once it is written.

    It waits for the write before: storage that is slower than training slows it down.
    """

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteHeld:
    """All that is held of the state, by a parked worker. FileWritten or FileLost follows."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseFence:
    """Free whoever waits in this generation or an older one: the duty that takes a while."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseGroups:
    """Leave the mesh: no group, no view of the state, no slot is touched any more.

    GroupsClosed follows. Writes of what was copied go on.
    """

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TellIt:
    """The controller hears of it, in the order of these words."""

    event: Event


Duty = (
    BuildMesh
    | RestoreState
    | BeginSteps
    | Train
    | NoteStable
    | KeepSnapshot
    | CopyPart
    | WriteHeld
    | RaiseFence
    | CloseGroups
    | TellIt
)
