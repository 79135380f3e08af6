"""What all ranks agree on once a step, in one small reduction of integers.

Integers, because their sum has no order: the loss is in units of 2^-24 nat. Requests to drain or to
save travel here too, so that all ranks heed them at the same step boundary.
"""

from dataclasses import astuple, dataclass

import torch

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.group import Group

LOSS_UNITS = 1 << 24  # a nat
NEVER = 1 << 52  # a step that no job reaches, and that is exact as a float


@dataclass(slots=True, kw_only=True)
class Ballot:
    """One rank's part of a step. Filled in as its microbatches are done.

    Ranks that compute the same microbatches together fill in loss, tokens and samples once.
    `norm_units` are those of the squares of the gradient's elements that it counts. `unready` is
    whether it cannot take a snapshot.
    """

    loss_units: int = 0
    tokens: int = 0
    samples: int = 0
    digest_high: int = 0
    digest_low: int = 0
    norm_units: int = 0
    nonfinite: int = 0
    drain: int = 0
    save: int = 0
    unready: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the whole step was. `loss` is the mean over its tokens in nats, 0 without any token.

    `digest` is written as the data layer writes that of a step: high, low and count as 40 digits.
    """

    loss: float
    tokens: int
    samples: int
    digest: str
    norm_units: int
    finite: bool
    drain: bool
    save: bool
    snapshot: bool


def vote(group: Group, ballot: Ballot) -> Outcome:
    """The sum of all ballots, the same on every rank.

    Raises: Cancelled, GroupError.
    """
    sums = torch.tensor(astuple(ballot), dtype=torch.int64, device=group.device)
    all_reduce_(group, sums)
    return outcome(Ballot(**dict(zip(Ballot.__slots__, sums.tolist(), strict=True))))


def outcome(total: Ballot) -> Outcome:
    return Outcome(
        loss=total.loss_units / (LOSS_UNITS * total.tokens) if total.tokens else 0.0,
        tokens=total.tokens,
        samples=total.samples,
        digest=f"{total.digest_high:016x}{total.digest_low:016x}{total.samples:08x}",
        norm_units=total.norm_units,
        finite=not total.nonfinite,
        drain=total.drain > 0,
        save=total.save > 0,
        snapshot=not total.unready,
    )
