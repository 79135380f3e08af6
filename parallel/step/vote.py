"""What all ranks agree on once a step, in one small reduction of integers.

Integers, because their sum has no order: the loss is in units of 2^-24 nat. Requests to drain or to
save travel here too, so that all ranks heed them at the same step boundary.

What microbatches lose and count stays where it was computed until then: to read a number of a
device's is to wait for all that it has been given to do, and the vote does so once a step.
"""

import math
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from remesh.parallel.groups.collectives import all_reduce_
from remesh.parallel.groups.group import Group
from remesh.parallel.numerics.losses import Losses
from remesh.parallel.step.work import SampleSums

LOSS_UNITS = 1 << 24  # a nat
NO_SAMPLES: SampleSums = (0, 0, 0)
MOST_NATS = 1 << 14  # a token: no model that learns has more, and 2^25 tokens of it still add up


@dataclass(slots=True, kw_only=True)
class Ballot:
    """One rank's part of a step. Filled in as its microbatches are done.

    Ranks that compute the same tokens together fill in their loss once, and those that have tokens
    of the same rows fill in the samples once. `norm_units` are those of the squares of the
    gradient's elements that it counts. `unready` is whether it cannot take a snapshot. `passed` are
    cross-entropy and tokens of the microbatches, and 1 where they are filled in here. `loads` are
    how often each expert was chosen, by layer, None in a step in which no bias follows them.
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
    passed: list[tuple[Tensor, Tensor, int]] = field(default_factory=list)
    loads: Tensor | None = None

    def count(self, losses: Losses, samples: SampleSums | None) -> None:
        """Fills in a microbatch; without its samples only whether its loss is finite."""
        is_counted = int(samples is not None)
        self.passed.append((losses.cross_entropy, losses.num_tokens, is_counted))
        if samples is not None:
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


_NUMBERS = tuple(one.name for one in fields(Ballot) if one.name not in ("passed", "loads"))
BALLOT_BYTES = 8 * len(_NUMBERS)


def vote(group: Group, ballot: Ballot) -> Ballot:
    """The sum of all ballots, the same on every rank.

    Cost: waits for the device.
    Raises: Cancelled, GroupError.
    """
    numbers = [getattr(ballot, name) for name in _NUMBERS]
    sums = torch.tensor(numbers, dtype=torch.int64, device=group.device)
    if ballot.passed:
        for name, count in _added_up(ballot.passed).items():
            sums[_NUMBERS.index(name)] += count.to(group.device)
    loads = ballot.loads
    if loads is None:
        all_reduce_(group, sums)
    else:
        told = torch.cat((sums, loads.flatten().to(group.device)))
        all_reduce_(group, told)
        sums, loads = told[: len(sums)], told[len(sums) :].view_as(loads)
    return Ballot(**dict(zip(_NUMBERS, sums.tolist(), strict=True)), loads=loads)


def _added_up(passed: list[tuple[Tensor, Tensor, int]]) -> dict[str, Tensor]:
    """Counts over the M microbatches. A loss too large for the sum is not finite either."""
    cross_entropies, num_tokens, counted = zip(*passed, strict=True)
    loss_M, tokens_M = torch.stack(cross_entropies).double(), torch.stack(num_tokens)
    is_number_M = loss_M.abs() <= MOST_NATS * tokens_M.clamp(min=1)
    units_M = (loss_M.where(is_number_M, 0.0) * LOSS_UNITS).round().to(torch.int64)
    counted_M = torch.tensor(counted, device=loss_M.device)
    return {
        "loss_units": (units_M * counted_M).sum(),
        "tokens": (tokens_M * counted_M).sum(),
        "nonfinite": (~is_number_M).sum(),
    }
