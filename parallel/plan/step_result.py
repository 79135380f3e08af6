"""What a step comes to: the one value from the engine to the report."""

from dataclasses import dataclass
from enum import IntEnum


class RankPhase(IntEnum):
    """Where in a step a rank stands: between steps, in the update, or anywhere else."""

    AT = 0
    COMPUTING = 1
    UPDATING = 2


# In place of the newest step of which a rank has a snapshot that is safe:
NEVER = 1 << 52  # of a rank that takes none, a step that no job reaches, exact as a float
ANEW = -2  # of one that lacks what others have: all forget what is newer than the stable step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The same on every rank, bit for bit.

    `loss` is the mean over the step's tokens in nats, NaN where that of any microbatch is not
    finite; `digest` is that of its `samples`. `applied` is False for a skipped update. The rest is
    what all ranks agreed on for the time after the step: `stable_step` is the newest of which all
    have a sealed snapshot, `snapshot` whether all are ready to take one of this step.
    """

    loss: float
    grad_norm: float
    lr: float
    tokens: int
    samples: int
    digest: str
    applied: bool
    drain: bool = False
    save: bool = False
    stable_step: int | None = None
    snapshot: bool = False
