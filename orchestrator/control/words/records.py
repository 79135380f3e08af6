"""What workers tell about their work: the values that events carry."""

from dataclasses import dataclass, field

from remesh.parallel.plan.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One finished step. Every replica computes the same record, bit for bit (times aside).

    Steps are counted from 1: step k turns the state "at k - 1" into the state "at k".
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    samples: int
    digest: str
    applied: bool
    step_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Which part of the state a worker holds: that of this rank in a mesh of this layout.

    A tp group holds one copy of the model; from ZeRO stage 1 on each of its parts is cut into
    shards, for `shard_size` replicas. What is not cut at all is one part, as by the defaults.
    """

    layout: Layout = field(default_factory=Layout)
    shard_size: int = 1
    rank: int = 0

    @property
    def cut(self) -> tuple[int, int]:
        """Into how many parts the state is cut by tp, and each of them into how many shards."""
        return (self.layout.tp, self.shard_size)

    @property
    def part(self) -> tuple[int, int]:
        """Which of these it is, each counted from 0."""
        if self.cut == (1, 1):  # asked for every rank, with thousands of them
            return (0, 0)
        return self.layout.state_part(self.rank, self.shard_size)

    @property
    def is_first(self) -> bool:
        """Whether no lower rank holds the same part: it is the one that puts snapshots of it."""
        return self.layout.coordinate(self.rank).dp < self.shard_size


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultSlot:
    """A sealed snapshot in the vault of a node: a rank's part of the state at `step`.

    `generation` is the one that trained it, `held` says which part of the state it is.
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
