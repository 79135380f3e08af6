"""What workers tell about their work: the values that events carry."""

from dataclasses import dataclass, field

from remesh.parallel.plan.cut import Held
from remesh.parallel.plan.step_result import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One finished step and what it `did`. Every replica has the same record (times aside).

    Steps are counted from 1: step k turns the state "at k - 1" into the state "at k".
    """

    step: int
    did: StepResult
    step_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultSlot:
    """A sealed snapshot in the vault of a node: what one rank held of the state at `step`.

    `generation` is the one that trained it.
    """

    vault: str
    held: Held
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker's place in one generation. `at_step` is the state it holds, None for none.

    `held` is the part of it that it holds. `local_rank` counts the members on its node, in the
    order of their devices.
    """

    worker: str
    node: str
    rank: int
    at_step: int | None
    held: Held = field(default_factory=Held)
    local_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshState:
    """Parameters are drawn from hash(seed, name); nothing is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerState:
    """The members whose `at_step` is `step` together hold all of its state, and it is all there is.

    The others take their parts from them, and so do those whose place asks for another part than
    they hold. `source` is the lowest rank that holds one, None if no member does.

    `slots` are the parts that no member holds, each in one slot of a living vault.
    """

    step: int
    source: int | None
    slots: tuple[VaultSlot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """Every member reads the committed checkpoint `name`."""

    step: int
    name: str


Restore = FreshState | PeerState | CheckpointState
