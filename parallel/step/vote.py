"""What all ranks agree on once a step, in one small message from each to each.

Integers, because their sum has no order: the loss is in units of 2^-24 nat. Each rank adds up what
all have told by itself, so that largest and least numbers travel with sums: the norm's scale, the
newest snapshots that are safe. Where there are many ranks, what each hears would grow with them:
there sums and largest numbers are two reductions instead. Requests to drain or to save travel here
too, so that all ranks heed them at the same step boundary. Only how often experts were chosen is a
message of its own, since those are many numbers.

What microbatches lose and count stays where it was computed until then: to read a number of a
device's is to wait for all that it has been given to do, and the vote does so once a step.
"""

import math
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from remesh.parallel.groups.collectives import all_reduce_, all_told
from remesh.parallel.groups.group import Group
from remesh.parallel.numerics.losses import Losses
from remesh.parallel.optim.clip import NO_CELL
from remesh.parallel.step.work import SampleSums

LOSS_UNITS = 1 << 24  # a nat
NO_SAMPLES: SampleSums = (0, 0, 0)
EACH_TO_EACH = 64  # ranks: that many messages still cost less than one more reduction
MOST_NATS = 1 << 14  # a token: no model that learns has more, and 2^25 tokens of it still add up


@dataclass(slots=True, kw_only=True)
class Ballot:
    """One rank's part of a step. Filled in as its microbatches are done.

    Ranks that compute the same tokens together fill in their loss once, and those that have tokens
    of the same rows fill in the samples once. `norm_units` are those of the squares of the
    gradient's elements that it counts, and `cell` the one in which the largest of them lies.
    `unready` is whether it cannot take a snapshot; `sealed_step` is the newest of which it has one
    that is safe, of all ranks the least: they all give one or none does. `passed` are cross-entropy
    and tokens of the microbatches, and 1 where they are filled in here. `loads` are how often each
    expert was chosen, by layer, None in a step in which no bias follows them.
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
    cell: int = NO_CELL
    sealed_step: int | None = None
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


_SUMMED = tuple(
    one.name for one in fields(Ballot) if one.name not in ("cell", "sealed_step", "passed", "loads")
)
BALLOT_BYTES = 8 * (len(_SUMMED) + 2)
_NONE_SEALED = -(1 << 62)


def vote(group: Group, ballot: Ballot, *, each_to_each: int = EACH_TO_EACH) -> Ballot:
    """What all ballots add up to, the same on every rank.

    Cost: waits for the device. A message from each rank to each, or two reductions among more than
    `each_to_each` ranks; and with loads a sum of them.
    Raises: Cancelled, GroupError.
    """
    own = {name: getattr(ballot, name) for name in _SUMMED}
    for name, number in _added_up(ballot.passed).items():
        own[name] += number
    sealed = _NONE_SEALED if ballot.sealed_step is None else -ballot.sealed_step
    numbers = [*own.values(), ballot.cell, sealed]
    if group.size > 1:
        row = torch.tensor(numbers, dtype=torch.int64, device=group.device)
        numbers = _over_all(group, row, each_to_each).tolist()
    *sums, cell, sealed = numbers
    if ballot.loads is not None:
        all_reduce_(group, ballot.loads)
    return Ballot(
        **dict(zip(_SUMMED, sums, strict=True)),
        cell=cell,
        sealed_step=None if sealed == _NONE_SEALED else -sealed,
        loads=ballot.loads,
    )


def _over_all(group: Group, row: Tensor, each_to_each: int) -> Tensor:
    """What is summed of all rows, and of the rest the largest."""
    num_summed = len(_SUMMED)
    if group.size > each_to_each:
        all_reduce_(group, row[:num_summed])
        all_reduce_(group, row[num_summed:], "max")
        return row
    rows = all_told(group, row)
    return torch.cat((rows[:, :num_summed].sum(0), rows[:, num_summed:].amax(0)))


def _added_up(passed: list[tuple[Tensor, Tensor, int]]) -> dict[str, int]:
    """Counts over microbatches. A loss too large for the sum is not finite either."""
    found = {"loss_units": 0, "tokens": 0, "nonfinite": 0}
    if not passed:
        return found
    cross_entropies, num_tokens, counted = zip(*passed, strict=True)
    losses: list[float] = torch.stack(cross_entropies).double().tolist()
    counts: list[int] = torch.stack(num_tokens).tolist()
    for loss, count, is_counted in zip(losses, counts, counted, strict=True):
        is_number = abs(loss) <= MOST_NATS * max(count, 1)
        found["nonfinite"] += not is_number
        if is_counted:
            found["tokens"] += count
            found["loss_units"] += round(loss * LOSS_UNITS) if is_number else 0
    return found
