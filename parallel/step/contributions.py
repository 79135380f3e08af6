"""Which parameters the model of a rank gets, and where what backward says of them adds up."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from remesh.parallel.holding.shard_state import ShardState
from remesh.parallel.model.linear import InPlaceGradient, Linear
from remesh.parallel.model.model_blocks import shared_parameters
from remesh.parallel.plan.buckets import Bucket, Place
from remesh.parallel.sums.gradients import Contribution
from remesh.parallel.techniques.zero import WorkingWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class JointMap:
    """Several maps of one input as one, of parameters that are those of all of them."""

    maps: tuple[str, ...]
    linear: Linear
    places: tuple[Place, ...]

    @property
    def names(self) -> set[str]:
        """Of the parameters of each."""
        return {f"{name}.{kind}" for name in self.maps for kind in ("weight", "bias")}

    @property
    def targets(self) -> Iterator[tuple[nn.Parameter, Place]]:
        """Its own parameters, and where they lie in the bucket."""
        yield from zip(self.linear.parameters(), self.places, strict=True)


def joint_maps(
    together: Iterable[tuple[str, ...]], bucket: Bucket, working: WorkingWeights
) -> Iterator[JointMap]:
    """Those maps of a model that are computed together and whose parameters are neighbours."""
    places = bucket.plan.places
    for maps in together:
        kinds = [kind for kind in ("weight", "bias") if f"{maps[0]}.{kind}" in places]
        runs = [_run([places.get(f"{name}.{kind}") for name in maps]) for kind in kinds]
        found = tuple(place for place in runs if place is not None)
        if found and len(found) == len(runs):
            linear = Linear.of(*(_parameter(working.full, place) for place in found))
            yield JointMap(maps=maps, linear=linear, places=found)


def contributions(
    state: ShardState, weights: Sequence[WorkingWeights], joint: Sequence[Sequence[JointMap]]
) -> Iterator[Contribution]:
    """What its own blocks add to each bucket, and what those add that share a parameter of it.

    `joint` are the maps that are one, by bucket.
    """
    own = {block for span in state.spans.values() for block in span}
    shared = shared_parameters(state.spec.model)
    for number, (bucket, working) in enumerate(zip(state.buckets, weights, strict=True)):
        places = bucket.plan.places
        if not places.keys() <= state.copies:
            yield _contribution(
                number, bucket, working.full, dict(places), bucket.blocks, joint[number]
            )
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
    number: int,
    bucket: Bucket,
    flat: Tensor,
    places: dict[str, Place],
    blocks: range,
    joint: Sequence[JointMap] = (),
) -> Contribution:
    parameters = {name: _parameter(flat, place) for name, place in places.items()}
    in_others = set[str]().union(*(one.names for one in joint))
    own = [(parameters[name], place) for name, place in places.items() if name not in in_others]
    return Contribution(
        bucket=number,
        size=bucket.plan.size,
        parameters=parameters,
        targets=(*own, *(target for one in joint for target in one.targets)),
        first_block=blocks[0],
        last_block=blocks[-1],
    )


def _run(places: Sequence[Place | None]) -> Place | None:
    """The rows of all of them as one, None if they do not lie one after the other."""
    found = [place for place in places if place is not None]
    if len(found) < len(places) or any(a.stop != b.start for a, b in pairwise(found)):
        return None
    rows, rest = sum(place.shape[0] for place in found), found[0].shape[1:]
    return Place(start=found[0].start, shape=(rows, *rest))


def _parameter(flat: Tensor, place: Place) -> nn.Parameter:
    """By way of `data`: a fetch must not count as a change of what backward has saved."""
    return InPlaceGradient(flat[place.start : place.stop].view(place.shape).data)
