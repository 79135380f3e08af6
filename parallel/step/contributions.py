"""Which parameters the model of a rank gets, and where what backward says of them adds up."""

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.model.linear import InPlaceGradient
from remesh.parallel.model.model_blocks import shared_parameters
from remesh.parallel.plan.buckets import Bucket, Place
from remesh.parallel.sums.gradients import Contribution
from remesh.parallel.techniques.zero import WorkingWeights


def contributions(state: ShardState, weights: Sequence[WorkingWeights]) -> Iterator[Contribution]:
    """What its own blocks add to each bucket, and what those add that share a parameter of it."""
    own = {block for span in state.spans.values() for block in span}
    shared = shared_parameters(state.spec.model)
    for number, (bucket, working) in enumerate(zip(state.buckets, weights, strict=True)):
        places = bucket.plan.places
        if not places.keys() <= state.copies:
            yield _contribution(number, bucket, working.full, dict(places), bucket.blocks)
        for one in shared:
            if one.source in places and one.user in own:
                place = {one.name: places[one.source]}
                yield _contribution(
                    number, bucket, working.full, place, range(one.user, one.user + 1)
                )


def needs(state: ShardState) -> dict[int, frozenset[int]]:
    """The buckets that each of the rank's blocks computes with."""
    found: dict[int, set[int]] = {n: set() for span in state.spans.values() for n in span}
    for number, bucket in enumerate(state.buckets):
        for block in bucket.blocks:
            found[block].add(number)
        for one in shared_parameters(state.spec.model):
            if one.source in bucket.plan.places and one.user in found:
                found[one.user].add(number)
    return {block: frozenset(buckets) for block, buckets in found.items()}


def _contribution(
    number: int, bucket: Bucket, flat: Tensor, places: dict[str, Place], blocks: range
) -> Contribution:
    return Contribution(
        bucket=number,
        size=bucket.plan.size,
        parameters={name: _parameter(flat, place) for name, place in places.items()},
        places=places,
        first_block=blocks[0],
        last_block=blocks[-1],
    )


def _parameter(flat: Tensor, place: Place) -> nn.Parameter:
    """By way of `data`: a fetch must not count as a change of what backward has saved."""
    return InPlaceGradient(flat[place.start : place.stop].view(place.shape).data)
