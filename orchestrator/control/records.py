"""What workers tell about their work: the values that events carry."""

from dataclasses import dataclass


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
class Member:
    """A worker's place in one generation. `at_step` is the state it holds, None for none.

    `local_rank` counts the members on its node, in the order of their devices.
    """

    worker: str
    node: str
    rank: int
    at_step: int | None
    local_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshState:
    """Parameters are drawn from hash(seed, name); nothing is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerState:
    """Members whose `at_step` differs from `step` take their state from the rank `source`."""

    step: int
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """Every member reads the committed checkpoint `name`."""

    step: int
    name: str


Restore = FreshState | PeerState | CheckpointState
