"""What all ranks agree on once a step, in one small reduction of integers.

Integers, because their sum has no order: the loss is in units of 2^-24 nat. Requests to drain or to
save travel here too, so that all ranks heed them at the same step boundary.
"""

import math
from dataclasses import astuple, dataclass

import torch

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.group import Group
from remesh.parallel.numerics.losses import Losses
from remesh.parallel.step.work import SampleSums

LOSS_UNITS = 1 << 24  # a nat
MOST_NATS = 1 << 14  # a token: no model that learns has more, and 2^25 tokens of it still add up


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

    def count(self, losses: Losses, samples: SampleSums | None) -> None:
        """Fills in a microbatch; without its samples only whether its loss is finite.

        One that is too large for the sum counts as not finite too.

        Cost: waits for the device.
        """
        value = losses.cross_entropy.item()
        is_number = math.isfinite(value) and abs(value) <= MOST_NATS * max(1, losses.num_tokens)
        self.nonfinite += not is_number
        if samples is None:
            return
        self.loss_units += round(value * LOSS_UNITS) if is_number else 0
        self.tokens += losses.num_tokens
        high, low, count = samples
        self.digest_high += high
        self.digest_low += low
        self.samples += count

    @property
    def loss(self) -> float:
        """The mean over the tokens in nats; NaN without any, or if that of a microbatch is none."""
        if self.nonfinite or not self.tokens:
            return math.nan
        return self.loss_units / (LOSS_UNITS * self.tokens)

    @property
    def is_finite(self) -> bool:
        return not self.nonfinite

    @property
    def sample_sums(self) -> SampleSums:
        return self.digest_high, self.digest_low, self.samples


def vote(group: Group, ballot: Ballot) -> Ballot:
    """The sum of all ballots, the same on every rank.

    Raises: Cancelled, GroupError.
    """
    sums = torch.tensor(astuple(ballot), dtype=torch.int64, device=group.device)
    all_reduce_(group, sums)
    return Ballot(**dict(zip(Ballot.__slots__, sums.tolist(), strict=True)))
