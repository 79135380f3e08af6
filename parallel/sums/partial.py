"""Gradients of parameters that several tensor ranks hold, each the gradient of a part of the work.

Once a step, after the sums over replicas, the ranks of a tensor group exchange what they own of
such parameters and add it up in the order of the ranks: the same bits on each of them, however the
gradient is cut into shards, which a reduction that adds where it passes would not give.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remesh.parallel.groups.collectives import all_gather
from remesh.parallel.groups.group import Group
from remesh.parallel.plan.buckets import FlatPlan
from remesh.parallel.plan.shares import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSpan:
    """Elements [start, stop) of the own shard of a bucket, summed over `holders` of the group."""

    bucket: int
    start: int
    stop: int
    holders: tuple[int, ...]


def partial_spans(
    bucket: int, plan: FlatPlan, owned: range, shares: Mapping[str, Share]
) -> list[PartialSpan]:
    """The spans of a bucket, of whose flat buffer the rank owns the elements `owned`."""
    spans = []
    for name, place in plan.places.items():
        start, stop = max(place.start, owned.start), min(place.stop, owned.stop)
        if shares[name].partial and start < stop:
            span = PartialSpan(
                bucket=bucket,
                start=start - owned.start,
                stop=stop - owned.start,
                holders=shares[name].holders,
            )
            spans.append(span)
    return spans


def sum_partial_(group: Group, gradients: Sequence[Tensor], spans: Sequence[PartialSpan]) -> None:
    """Replaces the spans by their sums. All ranks of the group own spans of the same sizes.

    Cost: one message of all spans to each rank of the group. Raises: Cancelled, GroupError.
    """
    if group.size == 1 or not spans:
        return
    own = torch.cat([gradients[span.bucket][span.start : span.stop] for span in spans])
    gathered = own.new_empty(group.size * len(own))
    all_gather(group, gathered, own)
    rows = gathered.view(group.size, -1)
    start = 0
    for span in spans:
        columns = slice(start, start + span.stop - span.start)
        start = columns.stop
        total = rows[span.holders[0], columns]
        for holder in span.holders[1:]:
            total.add_(rows[holder, columns])
        gradients[span.bucket][span.start : span.stop] = total
